import java.nio.charset.StandardCharsets;
import java.time.Duration;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** A producer of RocketMQ's Java client: sends one message of each kind, then answers checks until its input ends. */
public class Shop {
    public static void main(String[] args) throws Exception {
        String endpoints = args[0], topic = args[1], key = args[2], secret = args[3];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoints)
            .setCredentialProvider(new StaticSessionCredentialsProvider(key, secret))
            .enableSsl(false)
            .build();
        Producer producer = provider.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topic)
            .setTransactionChecker(view -> {
                String body = StandardCharsets.UTF_8.decode(view.getBody()).toString();
                System.out.println("check " + body + " " + view.getTag().orElse("") + " " + view.getKeys());
                return body.equals("lost") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            })
            .build();
        say("normal", producer.send(message(provider, topic, "normal").addProperty("region", "Z\u00fcrich").build()));
        say("fifo", producer.send(message(provider, topic, "fifo").setMessageGroup("customer-4").build()));
        long due = System.currentTimeMillis() + Duration.ofSeconds(3).toMillis();
        say("due", producer.send(message(provider, topic, "due").setDeliveryTimestamp(due).build()));
        half(provider, producer, topic, "paid").commit();
        half(provider, producer, topic, "declined").rollback();
        half(provider, producer, topic, "lost");
        System.out.println("sent");
        System.in.read();
        producer.close();
    }

    static MessageBuilder message(ClientServiceProvider provider, String topic, String body) {
        return provider.newMessageBuilder().setTopic(topic).setTag("TagA").setKeys("k1", "k2")
            .setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static Transaction half(ClientServiceProvider provider, Producer producer, String topic, String body)
        throws Exception {
        Transaction transaction = producer.beginTransaction();
        say(body, producer.send(message(provider, topic, body).build(), transaction));
        return transaction;
    }

    static void say(String body, SendReceipt receipt) {
        System.out.println(body + " " + receipt.getMessageId());
    }
}
