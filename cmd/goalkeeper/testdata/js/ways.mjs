// Submits a goal over NATS as a JavaScript program would: publish, publish
// again, watch the task's events to its end, ask, and ask with another payload.
// Prints what it saw as JSON.
import { connect, headers } from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";

const { NATS_URL, KEY, TASK, TENANT, GOAL, OTHER } = process.env;
const nc = await connect({ servers: NATS_URL });
const js = jetstream(nc);

const events = nc.subscribe(`goals.events.${TENANT}.${TASK}.>`);
await nc.flush(); // the server knows of the subscription

const publish = async () => {
  const ack = await js.publish(`goals.submit.${TENANT}`, GOAL, { msgID: KEY, timeout: 30_000 });
  return { duplicate: ack.duplicate };
};
const first = await publish();
const twice = await publish();

const seen = [];
for await (const m of events) {
  const data = m.json();
  for (const e of data.events ?? [data]) seen.push(e.type);
  if (seen.at(-1).startsWith("task.ended")) break;
}

const request = async (body) => {
  const h = headers();
  h.set("Idempotency-Key", KEY);
  const m = await nc.request(`goals.request.${TENANT}`, body, { headers: h, timeout: 30_000 });
  return {
    status: m.headers.get("Status"),
    location: m.headers.get("Location"),
    replayed: m.headers.get("Idempotent-Replayed"),
    body: m.json(),
  };
};
// The end is on the subject a moment before the queue forgets the goal.
const report = { first, twice, seen, request: await request(GOAL), conflict: await request(OTHER) };
console.log(JSON.stringify(report));
await nc.close();
