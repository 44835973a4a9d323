"""The page of `oomph view`, in a real browser on real recordings."""

import json
import os
import random
import re
import shutil
import subprocess
import urllib.request

import pytest
from playwright.sync_api import expect, sync_playwright

import oomph
from conftest import FIXTURES, OOMPH
from oomph._native import size
from viewing import PageProbe, launched, served

ZOO = FIXTURES / "zoo"
LEAK = ZOO / "leak_infer_outputs.pickle.xz"
OOM = ZOO / "oom_too_big.pickle.xz"
CLEAN = ZOO / "clean_resnet50_amp.pickle.xz"
FRAGMENTED = ZOO / "frag_variable_length.pickle.xz"
HOLDERS = FIXTURES / "recordings/holders"
PHASES = FIXTURES / "recordings/phases"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture
def probe(browser):
    """A page of its own, in which nothing may go wrong."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    probe = PageProbe(context.new_page())
    yield probe
    context.close()
    assert probe.errors == []


@pytest.fixture(scope="module")
def leak():
    with served(LEAK) as url:
        yield url


def report(path, *options: str) -> dict:
    done = subprocess.run([OOMPH, "report", "--json", *options, path], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["inputs"][0]["devices"][0]


def test_the_first_screen_answers_and_asks_nobody_else(probe, leak):
    probe.open(leak)
    said = report(LEAK)
    finding = said["findings"][0]
    card = probe.page.get_by_label("Findings", exact=True)
    expect(card).to_contain_text(finding["summary"])
    expect(card).to_contain_text(f"leak_infer_outputs.py:{finding['site']['line']}")
    expect(probe.page.locator("header")).to_contain_text(size(said["allocated"]["peak"]))
    expect(probe.page.locator("header")).to_contain_text(size(said["reserved"]["peak"]))
    assert all(url.startswith((leak, "data:")) for url in probe.requests), probe.requests


@pytest.mark.parametrize("by", ["site", "category", "block"])
@pytest.mark.parametrize("path", [LEAK, OOM, ZOO / "side_stream.pickle.xz"], ids=lambda path: path.name.split(".")[0])
def test_what_is_drawn_at_any_instant_is_what_the_report_says(probe, path, by):
    """A thousand instants of three recordings, grouped in three ways."""
    loaded = oomph.load(path)
    events = loaded.report().devices[0].events
    instants = random.Random(8).choices(range(events), k=334)
    with served(path) as url:
        probe.open(f"{url}#by={by}")
        drawn = probe.page.evaluate(
            "async (instants) => Promise.all(instants.map((instant) => window.oomph.drawnAt(instant + 1)))", instants
        )
    allocated = {at: report_at(loaded, at) for at in set(instants)}
    assert drawn == [allocated[at] for at in instants]


def report_at(loaded, event: int) -> int:
    """Allocated bytes just after an event, as the report counts them."""
    return loaded.report(at=event).json["inputs"][0]["devices"][0]["live"]["bytes"]


def test_the_pixels_reach_as_high_as_the_numbers(probe, leak):
    """The picture itself, not what it is made from: how high the colours reach at the peak and where half of it is allocated."""
    probe.open(leak)
    run = probe.ask("overview")["runs"][0]
    half = probe.page.evaluate(
        """async (events) => {
            for (let at = 0; at < events; at += 10) if (await window.oomph.drawnAt(at) > 1.3e9) return at;
        }""",
        run["events"],
    )
    heights = probe.page.evaluate(
        """([positions, events]) => {
            const canvas = document.querySelector("section.timeline .plot canvas.bands");
            const {width, height} = canvas;
            const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
            const isColourful = ([red, green, blue]) => Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
            return positions.map((position) => {
                const x = Math.floor((position + 0.5) / (events + 1) * width) + 4;
                let y = 0;
                while (y < height && !isColourful(pixels.subarray(4 * (y * width + x)))) y++;
                return height - y;
            });
        }""",
        [[run["peak"]["position"], half], run["events"]],
    )
    drawn = probe.page.evaluate("(at) => window.oomph.drawnAt(at)", half)
    assert heights[1] / heights[0] == pytest.approx(drawn / run["peak"]["bytes"], abs=0.03), heights


def test_hovering_names_what_is_there(probe, leak):
    probe.open(leak)
    probe.page.mouse.move(*probe.point(0.6, 0.5))
    tip = probe.page.locator(".picture-tip")
    expect(tip).to_contain_text("leak_infer_outputs.py:9")
    expect(tip).to_contain_text("predict")
    expect(tip).to_contain_text(re.compile(r"\d+ .iB · \d+% of allocated memory"))
    probe.page.mouse.move(5, 5)
    expect(tip).to_have_count(0)


def test_zooming_in_comes_to_one_allocation(probe):
    with served(FRAGMENTED) as url:
        probe.open(f"{url}#by=block")
        run = probe.ask("overview")["runs"][0]
        peak = run["peak"]["position"] / run["events"]
        for _ in range(30):
            probe.page.mouse.move(*probe.point(peak, 0.3))
            probe.page.mouse.wheel(0, -400)
        probe.settle()
        begin, end = map(float, probe.state()["span"].split("-"))
        assert end - begin < 200, "the wheel zooms in"
        assert (begin + end) / 2 == pytest.approx(run["peak"]["position"], abs=run["events"] / 500), "at the pointer"
        probe.page.mouse.click(*probe.point(peak, 0.25))
        row = int(probe.state()["block"])
        block = probe.ask(f"block?row={row}&run=0")
        details = probe.page.get_by_label("Details", exact=True)
        expect(details).to_contain_text(size(block["size"]))
        expect(details).to_contain_text(block["category"])
        expect(details).to_contain_text(block["addr"])
        probe.page.get_by_role("button", name="Show its lifetime").click()
        probe.settle()
        begin, end = map(float, probe.state()["span"].split("-"))
        assert begin <= block["allocEvent"] + 1 and end >= block["freeEvent"]


def test_a_finding_takes_every_view_to_its_evidence(probe):
    with served(FRAGMENTED) as url:
        probe.open(url)
        spike = next(finding for finding in probe.ask("findings?run=0")["findings"] if finding["kind"] == "spike")
        focus = spike["focus"]
        probe.page.get_by_label("Findings", exact=True).get_by_text(spike["summary"]).click()
        probe.settle()
        state = probe.state()
        assert state["group"] == f"site:{focus['group']}"
        begin, end = map(float, state["span"].split("-"))
        assert (round(begin), round(end)) == (focus["from"], focus["to"])
        group = probe.ask(f"group?at={focus['position']}&by=site&id={focus['group']}&run=0")
        details = probe.page.get_by_label("Details", exact=True)
        expect(details).to_contain_text(group["group"]["label"])
        expect(details).to_contain_text(size(group["bytes"]))
        layout = probe.ask(f"layout?at={focus['position']}&run=0")
        section = probe.page.get_by_label("Segments at the chosen moment")
        expect(section).to_contain_text(f"event {focus['position'] - 1:,}")
        expect(section).to_contain_text(f"{size(layout['reserved'])} reserved")


def test_scrubbing_the_map_shows_the_segments_as_they_were(probe, leak):
    probe.open(leak)
    section = probe.page.get_by_label("Segments at the chosen moment")
    box = probe.page.locator(".memory-map .plot canvas.bands").bounding_box()
    run = probe.ask("overview")["runs"][0]
    at = run["peak"]["position"]
    for target in [0.2, 0.9]:
        middle = box["y"] + box["height"] / 2
        probe.page.mouse.move(box["x"] + box["width"] * (at + 0.5) / (run["events"] + 1), middle)
        probe.page.mouse.down()
        probe.page.mouse.move(box["x"] + box["width"] * target, middle, steps=8)
        probe.page.mouse.up()
        probe.settle()
        at = int(probe.state()["at"])
        assert at == pytest.approx(target * run["events"], abs=run["events"] / 100)
        layout = probe.ask(f"layout?at={at}&run=0")
        expect(section).to_contain_text(f"{len(layout['segments'])} segment")
        expect(section).to_contain_text(f"event {at - 1:,}")
        expect(section).to_contain_text(f"{size(layout['reserved'])} reserved")
        assert layout["allocated"] == report(LEAK, "--at", str(at - 1))["live"]["bytes"]


def test_keys_move_the_moment_and_the_picture(probe, leak):
    probe.open(leak)
    run = probe.ask("overview")["runs"][0]
    probe.page.keyboard.press(".")
    assert int(probe.state()["at"]) == run["peak"]["position"] + 1
    probe.page.keyboard.press(",")
    probe.page.keyboard.press(",")
    assert int(probe.state()["at"]) == run["peak"]["position"] - 1
    probe.page.keyboard.press("p")
    assert "at" not in probe.state()
    probe.page.keyboard.press("+")
    assert "span" in probe.state()
    probe.page.keyboard.press("Home")
    assert "span" not in probe.state()
    help_text = probe.page.get_by_label("Keys and mouse", exact=True)
    probe.page.keyboard.press("?")
    expect(help_text).to_be_visible()
    probe.page.keyboard.press("p")
    probe.page.keyboard.press("Escape")
    expect(help_text).not_to_be_visible()


def test_the_bytes_are_zoomed_where_the_pointer_is(probe, leak):
    probe.open(leak)
    probe.page.mouse.move(*probe.point(0.6, 0.75))
    probe.page.keyboard.down("Control")
    for _ in range(6):
        probe.page.mouse.wheel(0, -300)
    probe.page.keyboard.up("Control")
    probe.settle()
    low, high = map(int, probe.state()["heights"].split("-"))
    assert 1.5e9 < low < high < 2.9e9
    probe.page.keyboard.press("Home")
    assert "heights" not in probe.state()


def test_back_goes_to_the_view_before(probe, leak):
    probe.open(leak)
    probe.page.get_by_role("tab", name="Flame graph").click()
    assert probe.state()["tab"] == "flame"
    probe.page.get_by_role("tab", name="Table").click()
    assert probe.state()["tab"] == "table"
    probe.page.go_back()
    expect(probe.page.get_by_role("tab", name="Flame graph")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("path", [CLEAN, FIXTURES / "formats/torch-cpp.pickle"], ids=["clean", "no loop"])
def test_where_nothing_is_wrong_the_page_says_what_the_report_says(probe, path):
    done = subprocess.run([OOMPH, "report", path], capture_output=True, text=True, check=True)
    words = re.search(r"✓ (nothing stands out:.*?)\n\n", done.stdout, re.DOTALL).group(1)
    with served(path) as url:
        probe.open(url)
        expect(probe.page.get_by_label("Findings", exact=True)).to_contain_text(re.sub(r"\s+", " ", words))


def test_an_address_shows_the_same_again(browser, probe, leak):
    probe.open(f"{leak}#by=category&tab=table&span=500-900&at=700")
    probe.page.mouse.click(*probe.point(0.5, 0.4))
    address = probe.page.url
    state = probe.state()
    again = PageProbe(probe.page.context.new_page()).open(probe.page.url)
    assert again.state() == state and again.errors == [], address
    expect(again.page.get_by_role("tab", name="Table")).to_have_attribute("aria-selected", "true")
    expect(again.page.get_by_label("Details", exact=True)).to_contain_text(
        probe.page.get_by_label("Details", exact=True).locator(".headline").inner_text()
    )


def test_brushing_an_interval_is_what_the_flame_graph_is_about(probe, leak):
    probe.open(f"{leak}#tab=flame")
    probe.page.keyboard.down("Shift")
    probe.page.mouse.move(*probe.point(0.3, 0.5))
    probe.page.mouse.down()
    probe.page.mouse.move(*probe.point(0.5, 0.5), steps=5)
    probe.page.mouse.up()
    probe.page.keyboard.up("Shift")
    begin, end = map(int, probe.state()["interval"].split("-"))
    flame = probe.ask(f"flame?from={begin}&run=0&to={end}")
    expect(probe.page.locator("#panel")).to_contain_text(size(round(flame["root"]["bytes"])))
    expect(probe.page.locator("#panel")).to_contain_text("predict")


def test_two_inputs_are_compared(probe):
    with served(LEAK, CLEAN) as url:
        probe.open(url)
        expect(probe.page.locator("section.timeline")).to_have_count(2)
        expect(probe.page.locator("section.timeline").nth(1)).to_contain_text("clean_resnet50_amp")
        probe.page.get_by_role("tab", name="Flame graph").click()
        probe.settle()
        probe.page.get_by_role("button", name="Other run, here").click()
        probe.settle()
        expect(probe.page.locator("#panel")).to_contain_text(re.compile(r"[+-]\d"))
        assert probe.state()["base"].startswith("1-")


def test_ranks_are_side_by_side(probe, tmp_path):
    for rank, name in enumerate(["clean_gpt2_hf", "no_zero_grad", "leak_loss_list"]):
        shutil.copy(ZOO / f"{name}.pickle.xz", tmp_path / f"rank{rank}.pickle.xz")
    with served(tmp_path) as url:
        probe.open(url)
        probe.page.get_by_role("tab", name="Ranks").click()
        panel = probe.page.locator("#panel")
        expect(panel.locator("svg.sparkline")).to_have_count(3)
        expect(panel).to_contain_text("above the median rank")
        ranks = probe.ask("ranks")
        for rank in ranks["ranks"]:
            expect(panel).to_contain_text(size(rank["peak"]))
        expect(panel).to_contain_text(ranks["skew"]["words"])


def test_hundreds_of_ranks_are_cells_and_groups(probe, tmp_path):
    """The page opens before they are read; a rank is read when someone looks at it, broken ones are named."""
    usual, other = (FIXTURES / "torch" / name for name in ("torch-2.4.1.pickle.xz", "torch-2.6.0.pickle.xz"))
    for rank in range(300):
        source = other if rank in (7, 250) else usual
        os.symlink(source, tmp_path / f"rank{rank}.pickle.xz")
    for rank in (0, 44):
        (tmp_path / f"rank{rank}.pickle.xz").unlink()
        (tmp_path / f"rank{rank}.pickle.xz").write_bytes(b"cut off")
    with served(tmp_path) as url:
        overview = json.load(urllib.request.urlopen(f"{url}api/overview", timeout=10))
        assert ([run["id"] for run in overview["runs"]], len(overview["inputs"])) == ([1], 300), "the first that can be read"
        probe.open(f"{url}#tab=ranks")
        panel = probe.page.locator("#panel")
        expect(panel).to_contain_text("above the median rank")
        ranks = probe.ask("ranks")
        assert [(group["count"], group["members"]) for group in ranks["groups"]] == [
            (2, "7, 250"),
            (296, "1–6, 8–43, 45–249, 251–299"),
        ]
        assert [broken["input"] for broken in ranks["unreadable"]] == [0, 44]
        expect(panel.locator("table.rank-groups tbody tr")).to_have_count(2)
        expect(panel).to_contain_text("rank44.pickle.xz")
        assert probe.page.locator("#panel *").count() < 150, "cells are pixels, not elements"
        assert probe.page.locator("select option").count() < 10
        cells = panel.get_by_role("grid")
        cells.focus()
        for _ in range(7):
            probe.page.keyboard.press("ArrowRight")
        high = size(ranks["groups"][0]["highest"])
        expect(panel.locator("#rank-cell")).to_contain_text(f"rank7.pickle.xz: peak {high}")
        assert darkness(cells, 7) > 2 * darkness(cells, 8)
        probe.page.keyboard.press("Enter")
        expect(probe.page.locator("header")).to_contain_text(high)
        probe.settle()
        assert probe.state()["run"] == "7"
        probe.page.reload()
        probe.settle()
        expect(probe.page.locator("header")).to_contain_text(high)


def darkness(cells, number: int) -> int:
    """How much of the colour of a rank's cell is not paper, 0 to 255."""
    return cells.locator("canvas").evaluate(
        "(canvas, at) => canvas.getContext('2d').getImageData(at, 6, 1, 1).data[3]", 14 * number + 6
    )


def test_a_what_if_is_shown_beside_the_recorded_run(probe):
    with served(FRAGMENTED) as url:
        probe.open(f"{url}#tab=whatif")
        panel = probe.page.locator("#panel")
        panel.get_by_label("expandable_segments").select_option("True")
        panel.get_by_role("button", name="Replay").click()
        command = [OOMPH, "simulate", "--json", "--conf", "expandable_segments:True", FRAGMENTED]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        expect(panel).to_contain_text("It fits", timeout=60_000)
        expect(panel).to_contain_text(size(said["peak_reserved"]))
        panel.get_by_role("button", name="Show next to the recorded run").click()
        probe.settle()
        expect(probe.page.locator("section.timeline")).to_have_count(2)
        expect(probe.page.locator("section.timeline").nth(1)).to_contain_text("expandable_segments:True")


def test_a_settings_string_that_makes_no_sense_is_refused_in_words(browser, leak):
    probe = PageProbe(browser.new_page()).open(f"{leak}#tab=whatif")
    panel = probe.page.locator("#panel")
    panel.get_by_placeholder("empty: as recorded").fill("max_split_size_mb:banana")
    panel.get_by_role("button", name="Replay").click()
    expect(panel.get_by_role("alert")).to_contain_text("max_split_size_mb")
    probe.page.close()


def test_holders_are_the_dominator_tree(probe):
    with served(HOLDERS) as url:
        probe.open(f"{url}#tab=holders")
        command = [OOMPH, "holders", "--tree", "--json", "--top", "32", "--depth", "16", HOLDERS]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["inputs"][0]
        tree = probe.page.get_by_role("treegrid", name="Dominator tree")
        branch = said["tree"]["branches"][0]
        expect(tree).to_contain_text(branch["name"])
        expect(tree).to_contain_text(size(branch["retained"][0]["bytes"]))


def test_the_process_is_shown_by_owner_and_by_phase(probe, leak):
    with served(PHASES) as url:
        probe.open(f"{url}#tab=process")
        said = json.loads(subprocess.run([OOMPH, "report", "--json", PHASES], capture_output=True, text=True, check=True).stdout)
        device = said["inputs"][0]["devices"][0]
        owners = probe.page.get_by_role("region", name="Memory of the process")
        expect(owners).to_contain_text(f"{size(device['ledger']['process'])} on the device")
        for row in device["ledger"]["rows"]:
            named = probe.page.get_by_role("rowheader", name=row["owner"], exact=True)
            expect(owners.get_by_role("row").filter(has=named)).to_contain_text(size(row["bytes"]))
        phases = probe.page.get_by_role("region", name="Phases")
        for phase in device["phases"]["phases"]:
            row = phases.get_by_role("row").filter(has=probe.page.get_by_role("button", name=phase["name"], exact=True))
            expect(row).to_contain_text(size(phase["peak"]))
            expect(row).to_contain_text(size(phase["last"]["stayed"]))
        phases.get_by_role("button", name="train", exact=True).click()
        [peak] = [phase["peak_event"] for phase in device["phases"]["phases"] if phase["name"] == "train"]
        assert probe.state()["at"] == str(peak + 1)
    probe.open(leak)
    expect(probe.page.get_by_role("tab", name="Process")).to_have_count(0)


def test_the_table_finds_and_sorts(probe, leak):
    probe.open(f"{leak}#tab=table")
    panel = probe.page.locator("#panel")
    panel.get_by_text("Sites", exact=True).click()
    expect(panel.get_by_role("row").nth(1)).to_contain_text("leak_infer_outputs.py:9")
    panel.get_by_text("Allocations", exact=True).click()
    panel.get_by_text("All", exact=True).click()
    panel.get_by_role("searchbox").fill("py:5")
    expect(panel.get_by_role("row").nth(1)).to_contain_text("leak_infer_outputs.py:5")
    panel.get_by_role("columnheader", name=re.compile("allocated at")).click()
    probe.settle()
    first = panel.get_by_role("row").nth(1)
    first.click()
    assert "block" in probe.state()


def test_an_exported_page_works_from_disk_without_a_network(browser, tmp_path):
    page = tmp_path / "leak.html"
    subprocess.run([OOMPH, "view", "--html", page, LEAK], check=True, capture_output=True)
    context = browser.new_context(offline=True, viewport={"width": 1440, "height": 900})
    probe = PageProbe(context.new_page()).open(page.as_uri())
    expect(probe.page.get_by_label("Findings", exact=True)).to_contain_text("171 MiB per step")
    expect(probe.page.get_by_label("Segments at the chosen moment")).to_contain_text("segments")
    for tab, words in [("Flame graph", "predict"), ("Table", "leak_infer_outputs.py:9")]:
        probe.page.get_by_role("tab", name=tab).click()
        expect(probe.page.locator("#panel")).to_contain_text(words)
    probe.page.mouse.move(*probe.point(0.6, 0.5))
    expect(probe.page.locator(".picture-tip")).to_contain_text("leak_infer_outputs.py:9")
    for _ in range(6):
        probe.page.mouse.wheel(0, -300)
    probe.settle()
    assert "span" in probe.state()
    # The sum at the peak, from the page alone.
    peak = report(LEAK)["allocated"]
    drawn = probe.page.evaluate("(position) => window.oomph.drawnAt(position)", peak["peak_event"] + 1)
    assert drawn == peak["peak"]
    assert all(url.startswith(("file:", "data:", "blob:")) for url in probe.requests), probe.requests
    assert probe.errors == []
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width,height", [(1280, 800), (2560, 1440)])
def test_nothing_is_cut_off_at_usual_sizes(browser, leak, width, height, scheme):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    probe = PageProbe(context.new_page()).open(leak)
    overflow = probe.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    for tab in ["Flame graph", "Table", "What if", "Holders", "Memory map"]:
        probe.page.get_by_role("tab", name=tab).click()
        probe.settle()
    assert probe.errors == []
    context.close()


@pytest.mark.parametrize(
    "name", ["formats/segments-4.pickle.xz", "recordings/cpu", "recordings/oom", "formats/two-devices.pickle.xz"]
)
def test_odd_inputs_have_a_page_too(probe, name):
    """No history, no allocator, a failed allocation, several devices."""
    with served(FIXTURES / name) as url:
        probe.open(url)
        expect(probe.page.locator("header")).to_contain_text("peak")
        for tab in ["Flame graph", "Table", "Memory map"]:
            probe.page.get_by_role("tab", name=tab).click()
            probe.settle()
