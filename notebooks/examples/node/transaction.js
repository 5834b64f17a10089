// A producer without CommitLake's own code: half message, local transaction, op, and answers to checks, by docs/contract.md.
//
//   npm install && node transaction.js 127.0.0.1:19092 [PREFIX]
//
// It sends one message that it commits, one that it rolls back, and one that it leaves open until it is checked.
const { randomUUID } = require("crypto");
const { Kafka, logLevel } = require("kafkajs");

const [servers = "127.0.0.1:19092", prefix = "commitlake."] = process.argv.slice(2);
const GROUP = "node-service";
const kafka = new Kafka({ clientId: GROUP, brokers: servers.split(","), logLevel: logLevel.ERROR });
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
const consumer = kafka.consumer({ groupId: `${prefix}check.${GROUP}` });
const outcomes = new Map(); // stands for the service's database: what became of a transaction

async function half(topic, body) {
  const id = randomUUID();
  const headers = { REAL_TOPIC: topic, UNIQ_KEY: id, PGROUP: GROUP };
  const [sent] = await producer.send({ topic: `${prefix}half`, acks: -1, messages: [{ value: body, headers }] });
  return { id, at: { queue: sent.partition, offset: Number(sent.baseOffset) } };
}

async function end(id, halfMessages, decision, check) {
  const op = {
    transaction_id: id, producer_group: GROUP, decision, half_messages: halfMessages,
    from_check: check !== undefined, check_id: check ?? null, remark: null,
  };
  const message = { key: id, value: JSON.stringify(op), partition: halfMessages[0].queue };
  await producer.send({ topic: `${prefix}op`, acks: -1, messages: [message] });
}

async function transaction(body, work) {
  const { id, at } = await half("orders", body);
  outcomes.set(id, await work()); // COMMIT, ROLLBACK, or nothing when it is not known yet
  if (outcomes.get(id)) await end(id, [at], outcomes.get(id));
  console.log(`${body} ${id} ${outcomes.get(id) ?? "open"}`);
  return id;
}

async function answer({ message }) {
  const header = (name) => message.headers[name]?.toString();
  if (header("PGROUP") !== GROUP) return; // other groups' checks are in the topic too
  const id = header("__transactionId__");
  await end(id, JSON.parse(header("HALF_MESSAGES")), outcomes.get(id) ?? "UNKNOWN", header("CHECK_ID"));
  console.log(`checked ${id} ${outcomes.get(id) ?? "UNKNOWN"}`);
}

(async () => {
  await producer.connect();
  await transaction("paid", async () => "COMMIT");
  await transaction("declined", async () => "ROLLBACK");
  const open = await transaction("late", async () => undefined);
  outcomes.set(open, "COMMIT"); // the local transaction ended, and nobody sent its decision: a check asks
  await consumer.connect();
  await consumer.subscribe({ topic: `${prefix}check`, fromBeginning: true });
  await consumer.run({ eachMessage: answer });
  process.on("SIGTERM", async () => { await consumer.disconnect(); await producer.disconnect(); process.exit(0); });
})();
