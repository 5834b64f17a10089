// A producer of RocketMQ's Node client: sends one message of each kind, then answers checks until its input ends.
const { Producer } = require('rocketmq-client-nodejs');

const COMMIT = 1; // TransactionResolution, which the package does not export
const [endpoints, topic] = process.argv.slice(2);

async function main() {
  const checker = {
    async check(view) {
      console.log(`check ${view.body} ${view.tag}`);
      return COMMIT;
    },
  };
  const producer = new Producer({ endpoints, namespace: '', topics: [topic], checker });
  await producer.startup();
  const message = (body, more = {}) => ({ topic, tag: 'TagA', keys: ['k1'], body: Buffer.from(body), ...more });
  await producer.send(message('normal'));
  await producer.send(message('fifo', { messageGroup: 'customer-4' }));
  const delayed = await producer.send(message('delayed', { delay: 3600000 }));
  await producer.recallMessage(topic, delayed.recallHandle);
  const transaction = producer.beginTransaction();
  await producer.send(message('half'), transaction);
  await transaction.commit();
  console.log('sent');
  process.stdin.on('end', async () => {
    await producer.shutdown();
    process.exit(0);
  });
  process.stdin.resume();
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
