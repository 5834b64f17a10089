import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The order service: orders are rows of its own database, and a message follows each that is paid.
 *
 * <p>Orders.java HOST:PORT INSTANCE COUNT places that many orders, then answers checks until Ctrl-C. With a fourth
 * argument, dies, it kills itself between the commit of the last order and that of its message.
 */
public class Orders {
    static final String TOPIC = "paid-orders";
    static final String DATABASE = "jdbc:sqlite:orders.db?busy_timeout=30000"; // all instances share it

    public static void main(String[] args) throws Exception {
        String instance = args[1];
        int count = Integer.parseInt(args[2]);
        boolean dies = args.length > 3 && args[3].equals("dies");
        write("CREATE TABLE IF NOT EXISTS orders (message_id TEXT PRIMARY KEY, order_id TEXT UNIQUE, state TEXT)");
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0])
            .enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)) // of 3 s a busy machine may need more
            .build();
        Producer producer = provider.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(TOPIC) // so that it is asked for orders of the other instances, too
            .setTransactionChecker(Orders::check)
            .build();
        for (int n = 1; n <= count; n++) {
            String order = instance + "-" + n;
            String state = n % 3 == 0 ? "DECLINED" : "PAID"; // what the bank says
            Message message = provider.newMessageBuilder().setTopic(TOPIC).setKeys(order)
                .setBody(Integer.toString(10 * n).getBytes(StandardCharsets.UTF_8)).build();
            Transaction transaction = producer.beginTransaction();
            SendReceipt half = producer.send(message, transaction); // nobody sees it yet
            boolean placed = place(half.getMessageId().toString(), order, state); // the local transaction
            if (dies && n == count) {
                System.out.println(order + " " + state + " " + half.getMessageId() + ", and killed");
                new ProcessBuilder("sh", "-c", "kill -9 " + ProcessHandle.current().pid()).start().waitFor();
            }
            if (placed && state.equals("PAID")) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
            System.out.println(order + " " + (placed ? state : "NOT PLACED") + " " + half.getMessageId());
        }
        System.out.println("answers checks until Ctrl-C");
        Thread.currentThread().join();
    }

    /** Whether the order is placed now; not so when it was before, or when a check has cancelled it. */
    static boolean place(String messageId, String order, String state) throws SQLException {
        return write("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", messageId, order, state) == 1;
    }

    /** Any instance answers for any other: it looks the order up by the message that is to follow it. */
    static TransactionResolution check(MessageView half) {
        String messageId = half.getMessageId().toString();
        try {
            place(messageId, null, "CANCELLED"); // where there is no order: then none comes later
            String state = state(messageId);
            System.out.println("check of " + half.getKeys() + " " + messageId + ": " + state);
            return state.equals("PAID") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        } catch (SQLException error) {
            System.out.println("check of " + messageId + ": " + error);
            return TransactionResolution.UNKNOWN; // asked again later
        }
    }

    static String state(String messageId) throws SQLException {
        try (Connection db = DriverManager.getConnection(DATABASE);
            PreparedStatement query = db.prepareStatement("SELECT state FROM orders WHERE message_id = ?")) {
            query.setString(1, messageId);
            try (ResultSet row = query.executeQuery()) {
                row.next();
                return row.getString(1);
            }
        }
    }

    static int write(String sql, String... values) throws SQLException {
        try (Connection db = DriverManager.getConnection(DATABASE);
            PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                statement.setString(i + 1, values[i]);
            }
            return statement.executeUpdate();
        }
    }
}
