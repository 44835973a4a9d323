import assert from "node:assert/strict";
import test from "node:test";
import { settingIn, sizeIn, withSetting } from "../src/state/settings";

const CONF = "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]";

test("a setting is read from the line", () => {
  assert.equal(settingIn(CONF, "expandable_segments"), "True");
  assert.equal(settingIn(CONF, "roundup_power2_divisions"), "[256:1,512:2]");
  assert.equal(settingIn(CONF, "max_split_size_mb"), "");
});

test("a setting is changed, added and removed without touching the others", () => {
  assert.equal(withSetting(CONF, "expandable_segments", ""), "roundup_power2_divisions:[256:1,512:2]");
  assert.equal(withSetting(CONF, "max_split_size_mb", "64"), `${CONF},max_split_size_mb:64`);
});

test("a size without a unit is in GiB", () => {
  assert.deepEqual(["24", "20 GiB", "80GB", "512m", "", "0", "x"].map(sizeIn), [
    24 * 2 ** 30,
    20 * 2 ** 30,
    80e9,
    512 * 2 ** 20,
    null,
    null,
    null,
  ]);
});
