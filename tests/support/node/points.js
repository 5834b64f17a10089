// Consumers of RocketMQ's Node client: a simple one that receives each message twice, then a push one that fails once.
const { ConsumeResult, FilterExpression, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const SQL92 = 2; // FilterType, which the package does not export
const [endpoints, topic, count] = process.argv.slice(2);

const say = (kind, view) => console.log(`${kind} ${view.messageId} ${view.body} ${view.deliveryAttempt}`);

async function simple() {
  const subscriptions = new Map([[topic, FilterExpression.SUB_ALL]]);
  const consumer = new SimpleConsumer({
    endpoints, namespace: '', consumerGroup: 'simple', subscriptions, awaitDuration: 5000,
  });
  await consumer.startup();
  for (let seen = 0; seen < 2 * count;) {
    for (const view of await consumer.receive(16, 30000)) {
      say('simple', view);
      seen++;
      await (view.deliveryAttempt === 1 ? consumer.changeInvisibleDuration(view, 1000) : consumer.ack(view));
    }
  }
  await consumer.shutdown();
}

async function push() {
  const messageListener = {
    async consume(view) {
      say('push', view);
      return view.deliveryAttempt === 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
  const subscriptions = new Map([[topic, new FilterExpression("TAGS = 'paid'", SQL92)]]);
  const consumer = new PushConsumer({ endpoints, namespace: '', consumerGroup: 'push', subscriptions, messageListener });
  await consumer.startup();
  process.stdin.on('end', async () => {
    await consumer.shutdown();
    process.exit(0);
  });
  process.stdin.resume();
}

simple().then(push).catch(error => {
  console.error(error);
  process.exit(1);
});
