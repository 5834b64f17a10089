import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Transactions of RocketMQ's Java client: ADDRESS THREADS SECONDS RATE. Eight threads share a producer, and so a
 * connection. RATE is of all threads together, a second; 0 for as many as they can. Prints JSON; the first seconds are
 * not counted.
 */
public class Transactions {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final long WARM_NS = 5_000_000_000L;

    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[1]);
        double seconds = Double.parseDouble(args[2]), rate = Double.parseDouble(args[3]);
        long pauseNs = rate == 0 ? 0 : (long) (1e9 * threads / rate);
        List<Producer> producers = new ArrayList<>();
        for (int i = 0; i < threads; i += 8) {
            producers.add(producer(args[0]));
        }
        long from = System.nanoTime() + WARM_NS, until = from + (long) (seconds * 1e9);
        ConcurrentLinkedQueue<Long> times = new ConcurrentLinkedQueue<>();
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Producer producer = producers.get(i / 8);
            long first = System.nanoTime() + pauseNs * i / threads;
            running.add(new Thread(() -> run(producer, first, pauseNs, from, until, times)));
        }
        running.forEach(Thread::start);
        for (Thread thread : running) {
            thread.join();
        }
        long[] sorted = times.stream().mapToLong(Long::longValue).sorted().toArray();
        System.out.printf(Locale.ROOT, "{\"transactions/s\": %f, \"p50 ms\": %f, \"p99 ms\": %f}%n",
            sorted.length / seconds, sorted[sorted.length / 2] / 1e6, sorted[sorted.length * 99 / 100] / 1e6);
        System.exit(0);
    }

    static Producer producer(String address) throws Exception {
        return PROVIDER.newProducerBuilder()
            .setClientConfiguration(ClientConfiguration.newBuilder().setEndpoints(address).enableSsl(false).build())
            .setTopics("orders")
            .setTransactionChecker(view -> TransactionResolution.COMMIT)
            .build();
    }

    /** One after the other; each counts from when it was due. */
    static void run(Producer producer, long first, long pauseNs, long from, long until, ConcurrentLinkedQueue<Long> times) {
        byte[] body = new byte[256];
        Arrays.fill(body, (byte) '.');
        try {
            for (long due = first; System.nanoTime() < until; due = pauseNs == 0 ? System.nanoTime() : due + pauseNs) {
                while (System.nanoTime() < due) {
                    Thread.sleep(Math.max(0, due - System.nanoTime()) / 1_000_000, 100_000);
                }
                Transaction transaction = producer.beginTransaction();
                Message message = PROVIDER.newMessageBuilder().setTopic("orders").setBody(body).build();
                producer.send(message, transaction);
                transaction.commit();
                long ended = System.nanoTime();
                if (ended >= from && ended < until) {
                    times.add(ended - due);
                }
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }
}
