import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Consumers of RocketMQ's Java client: a simple one that receives each message twice, then a push one that fails once. */
public class Points {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[4]);
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0])
            .setCredentialProvider(new StaticSessionCredentialsProvider(args[2], args[3]))
            .enableSsl(false)
            .build();
        SimpleConsumer simple = provider.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("simple")
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .build();
        for (int seen = 0; seen < 2 * count;) {
            List<MessageView> messages = simple.receive(16, Duration.ofSeconds(30));
            for (MessageView each : messages) {
                say("simple", each);
                seen++;
                if (each.getDeliveryAttempt() == 1) {
                    simple.changeInvisibleDuration(each, Duration.ofSeconds(1));
                } else {
                    simple.ack(each);
                }
            }
        }
        simple.close();
        PushConsumer push = provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("push")
            .setSubscriptionExpressions(Collections.singletonMap(
                topic, new FilterExpression("TAGS = 'paid'", FilterExpressionType.SQL92)))
            .setMessageListener(each -> {
                say("push", each);
                return each.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        System.in.read();
        push.close();
        System.exit(0);
    }

    private static synchronized void say(String kind, MessageView each) {
        String body = StandardCharsets.UTF_8.decode(each.getBody()).toString();
        System.out.println(kind + " " + each.getMessageId() + " " + body + " " + each.getDeliveryAttempt());
    }
}
