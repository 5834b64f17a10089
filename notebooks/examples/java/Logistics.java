import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** The logistics service: Logistics.java HOST:PORT ships each paid order, once, until Ctrl-C. */
public class Logistics {
    static final String DATABASE = "jdbc:sqlite:shipments.db?busy_timeout=30000";

    public static void main(String[] args) throws Exception {
        try (Connection db = DriverManager.getConnection(DATABASE)) {
            db.createStatement().execute(
                "CREATE TABLE IF NOT EXISTS shipments (message_id TEXT PRIMARY KEY, order_id TEXT)");
        }
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0])
            .enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)) // of 3 s a busy machine may need more
            .build();
        SimpleConsumer consumer = ClientServiceProvider.loadService().newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("logistics")
            .setSubscriptionExpressions(Map.of("paid-orders", FilterExpression.SUB_ALL))
            .setAwaitDuration(Duration.ofSeconds(10))
            .build();
        System.out.println("ships until Ctrl-C");
        while (true) {
            try {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    ship(message);
                    consumer.ack(message); // else it comes again after the 30 s
                }
            } catch (Exception error) { // the gateway is away, or the database
                System.out.println(error);
                Thread.sleep(1_000);
            }
        }
    }

    static void ship(MessageView message) throws SQLException {
        String order = message.getKeys().iterator().next();
        try (Connection db = DriverManager.getConnection(DATABASE);
            PreparedStatement insert = db.prepareStatement("INSERT OR IGNORE INTO shipments VALUES (?, ?)")) {
            insert.setString(1, message.getMessageId().toString());
            insert.setString(2, order);
            System.out.println(order + (insert.executeUpdate() == 1 ? ": shipped" : ": shipped before"));
        }
    }
}
