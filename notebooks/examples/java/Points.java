import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageView;

/** The points service: Points.java HOST:PORT books points for each paid order, once, until Ctrl-C. */
public class Points {
    static final String DATABASE = "jdbc:sqlite:points.db?busy_timeout=30000";

    public static void main(String[] args) throws Exception {
        try (Connection db = DriverManager.getConnection(DATABASE)) {
            db.createStatement().execute(
                "CREATE TABLE IF NOT EXISTS points (message_id TEXT PRIMARY KEY, order_id TEXT, points INTEGER)");
        }
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0])
            .enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)) // of 3 s a busy machine may need more
            .build();
        ClientServiceProvider.loadService().newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("points")
            .setSubscriptionExpressions(Map.of("paid-orders", FilterExpression.SUB_ALL))
            .setMessageListener(Points::book)
            .build();
        System.out.println("books points until Ctrl-C");
        Thread.currentThread().join();
    }

    static ConsumeResult book(MessageView message) {
        String order = message.getKeys().iterator().next();
        int points = Integer.parseInt(StandardCharsets.UTF_8.decode(message.getBody()).toString());
        try (Connection db = DriverManager.getConnection(DATABASE);
            PreparedStatement insert = db.prepareStatement("INSERT OR IGNORE INTO points VALUES (?, ?, ?)")) {
            insert.setString(1, message.getMessageId().toString());
            insert.setString(2, order);
            insert.setInt(3, points);
            System.out.println(order + ": " + (insert.executeUpdate() == 1 ? points + " points" : "has its points"));
            return ConsumeResult.SUCCESS;
        } catch (SQLException error) {
            System.out.println(order + ": " + error);
            return ConsumeResult.FAILURE; // it comes again after 10 s
        }
    }
}
