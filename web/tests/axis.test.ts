import assert from "node:assert/strict";
import test from "node:test";
import { around, byteTicks, eventTicks, panned, timeTicks, zoomed } from "../src/state/axis";

const labels = (ticks: { label: string }[]) => ticks.map(({ label }) => label);

test("byte ticks are multiples of a power of two in one unit", () => {
  assert.deepEqual(labels(byteTicks(0, 2 ** 31, 4)), ["0", "0.5 GiB", "1 GiB", "1.5 GiB", "2 GiB"]);
});

test("an event lies on the border between two positions", () => {
  assert.deepEqual(
    eventTicks({ from: 0, to: 20 }, 4),
    [0, 5, 10, 15].map((event) => ({ at: event + 1, label: String(event) })),
  );
});

test("time ticks are since the first event", () => {
  assert.deepEqual(labels(timeTicks({ from: 0, to: 2e6 }, 4)), ["0", "0.5 s", "1 s", "1.5 s", "2 s"]);
});

test("zooming keeps the point under the pointer and stays within the run", () => {
  const whole = { from: 0, to: 100 };
  assert.deepEqual(zoomed(whole, 50, 0.5, whole, 6), { from: 25, to: 75 });
  assert.deepEqual(zoomed({ from: 25, to: 75 }, 50, 10, whole, 6), whole);
  assert.deepEqual(panned({ from: 80, to: 100 }, 50, whole), { from: 80, to: 100 });
  assert.deepEqual(around({ from: 40, to: 60 }, whole, 6), { from: 38.4, to: 61.6 });
});
