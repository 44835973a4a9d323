#!/usr/bin/env python3
"""Measure `oomph view` side by side with PyTorch's own page, in a real browser.

Needs `pip install playwright` and a Chromium; writes bench/results/YYYY-MM-DD-view.md.

PyTorch's page loads its code from the network. To run it without, --memoryviz names a folder with
  MemoryViz.js   torch/utils/viz/MemoryViz.js of PyTorch's repository
  modules/       what it imports from cdn.skypack.dev, as ES modules that share one d3-selection:
                     for m in d3@5 d3-axis@1 d3-scale@1 d3-zoom@1 d3-brush@1; do
                         npm install $m esbuild && echo "export * from '${m%@*}';" > $m.js; done
                     npx esbuild d3*.js --bundle --splitting --format=esm --outdir=modules

Exit code 1: on the largest file, oomph misses one of its promises (the list at the end of the report).
Exit code 2: something did not run.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import version

from playwright.sync_api import Error as BrowserError
from playwright.sync_api import sync_playwright

from run import ROOT, TORCH, fail, field, first_line, get_memory_viz, machine, measure

WINDOW = {"width": 1280, "height": 800}
GESTURE_SECONDS = 5
# V8's, in characters; PyTorch's page has the snapshot as one string in base64
LONGEST_STRING = 2**29 - 24
# of tiles of single blocks, as in web/src/protocol/tile.ts
TILE, STRIDE, NO_BLOCK = 2048, 512, 0xFFFFFFFD

OOMPH_PICTURE = """() => window.oomph?.settled() && performance.getEntriesByType("resource")
    .some(({ name, responseStatus }) => name.includes("api/timeline") && responseStatus === 200)"""
PEER_PICTURE = "() => document.querySelector('svg polygon') !== null"
# in a task of its own: the answer to this would otherwise wait for all of the drawing
FULL_DETAIL = """() => {
    const slider = document.querySelector("input[type=range]");
    slider.value = slider.max;
    setTimeout(() => slider.dispatchEvent(new Event("change")));
}"""
FULL_PICTURE = """() => document.querySelector("svg")?.querySelectorAll("polygon").length
    > document.querySelector("input[type=range]").max"""
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"

RECORD_FRAMES = """() => {
    window.benchFrames = [];
    const next = (last) => requestAnimationFrame((now) => { window.benchFrames.push(now - last); next(now); });
    requestAnimationFrame(next);
}"""

# Each as (kind, whether it is later than a time, milliseconds).
TILE_REQUESTS = """(time) => performance.getEntriesByType("resource")
    .map(({ name, startTime, duration }) => [name.match(/api\\/(timeline|map)\\?/)?.[1], startTime > time, duration])
    .filter(([kind]) => kind)"""

# d3 keeps what a shape stands for in __data__. The band's offsets have one entry more than its sizes, at the beginning.
PEER_SHOWS = """() => {
    const shapes = [...document.querySelector("svg").querySelectorAll("polygon")].map((shape) => shape.__data__);
    const band = shapes.find(({ elem }) => elem === "summarized");
    let [peak, summed, summedBand] = [{ total: 0, band: 0 }, 0, 0];
    band.size.forEach((size, at) => {
        const total = band.offsets[at + 1] + size;
        const steps = (band.timesteps[at + 1] ?? band.timesteps[at] + 1) - band.timesteps[at];
        if (total > peak.total) peak = { total, band: size };
        summed += total * steps;
        summedBand += size * steps;
    });
    const allocations = Number(document.querySelector("input[type=range]").max);
    return { shapes: shapes.length - 1, allocations, peak, share: summedBand / summed };
}"""

ROWS = {
    "made": "the page is written in",
    "listening": "start of the process to listening",
    "picture": "page opened to first picture",
    "whole": "**first command to first picture**",
    "rate": f"frames a second in {GESTURE_SECONDS} s of zoom and pan",
    "frames": "**a frame**: median · 95% · longest",
    "drawing": "of which drawing: median · 95% · longest",
    "first_tiles": "slowest tile of the first picture: timeline · map",
    "later_tiles": "**slowest tile after that**: timeline · map",
    "heap": "**page: objects · buffers · DOM, after gc**",
    "renderer": "page's process: resident · peak",
    "server": "server: resident · peak",
    "shapes": "**allocations that can be seen one by one**",
    "merged": "drawn as one with others",
}


def milliseconds_of(value):
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def megabytes(value):
    return f"{value / 1e6:,.0f} MB"


def spread(times):
    """Median, 95th percentile and longest."""
    ordered = sorted(times)
    return " · ".join(map(milliseconds_of, (statistics.median(ordered), ordered[int(0.95 * len(ordered))], ordered[-1])))


def resident(pid):
    """Resident and peak resident bytes of a process."""
    return tuple(int(field(f"/proc/{pid}/status", name).split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))


@contextlib.contextmanager
def running_browser(chromium, path, limit):
    """A browser for one page, so that no page pays for the memory of another; and that page, still blank."""
    browser = chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
    try:
        # oomph's page forbids eval, which is how Playwright waits for something to become true
        page = browser.new_page(viewport=WINDOW, bypass_csp=True)
        page.set_default_timeout(limit * 1000)
        page.add_init_script("performance.setResourceTimingBufferSize(100000)")
        yield browser, page
    finally:
        browser.close()


@contextlib.contextmanager
def serving(oomph, file):
    """A running server, its address, and how long it took to listen."""
    begin = time.perf_counter()
    command = [oomph, "view", "--no-open", file]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = server.stdout.readline().strip()
        if not url:
            fail(f"oomph view did not say where it listens, for {file}")
        yield server, url, time.perf_counter() - begin
    finally:
        server.terminate()
        server.wait()


def until_drawn(page, is_drawn, start, *of):
    """Calls `start`; seconds until the picture is on the screen."""
    begin = time.perf_counter()
    start(*of)
    page.wait_for_function(is_drawn)
    page.evaluate(TWO_FRAMES)
    return time.perf_counter() - begin


def zoom_and_drag(mouse, x, y):
    """Zooms in, drags and zooms out again. Each yield is one input that the page has taken."""
    mouse.move(x, y)
    for _ in range(25):
        yield mouse.wheel(0, -120)
    mouse.down()
    for step in range(1, 21):
        yield mouse.move(x - 10 * step, y)
    mouse.up()
    for _ in range(25):
        yield mouse.wheel(0, 120)


def frame_times(page, picture):
    """Milliseconds of each frame while the picture is zoomed and dragged in several places."""
    box = page.locator(picture).first.bounding_box()
    page.evaluate(RECORD_FRAMES)
    end = time.perf_counter() + GESTURE_SECONDS
    for share in itertools.cycle((0.3, 0.8, 0.5)):
        x, y = box["x"] + share * box["width"], box["y"] + box["height"] / 2
        for _ in zoom_and_drag(page.mouse, x, y):
            if time.perf_counter() >= end:
                times = page.evaluate("() => window.benchFrames")
                page.mouse.up()
                return times


def memory_rows(browser, page):
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    heap = [usage[part] for part in ("usedSize", "backingStorageSize", "embedderHeapUsedSize")]  # the first: JSHeapUsedSize
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    # The browser keeps empty renderers in reserve; the page's is the largest.
    now, peak = max(resident(process["id"]) for process in processes if process["type"] == "renderer")
    return sum(heap), {"heap": " · ".join(map(megabytes, heap)), "renderer": f"{megabytes(now)} · {megabytes(peak)}"}


def frame_rows(times):
    return {"rate": f"{1000 * len(times) / sum(times):.1f}", "frames": spread(times)}


def slowest(tiles, later):
    """Of the timeline's tiles and of the map's."""
    words = []
    for kind in ("timeline", "map"):
        durations = [duration for of, is_later, duration in tiles if (of, is_later) == (kind, later)]
        words.append(f"{milliseconds_of(max(durations))} of {len(durations)}" if durations else "none")
    return " · ".join(words)


def ask(url, question):
    with urllib.request.urlopen(f"{url}api/{question}") as answer:
        return answer.read()


def seen_alone(url, events):
    """How many blocks have a band of their own somewhere, at the closest zoom. Asks for every tile: minutes on large files."""
    seen = set()
    for tile in range(0, events // STRIDE + 1, TILE // STRIDE):
        answer = ask(url, f"timeline?by=block&level=0&run=0&smallest=0&tile={tile}&x=event")
        (length,) = struct.unpack_from("<I", answer)
        header = json.loads(answer[8 : 8 + length])
        columns, entries = header["columns"], header["entries"]
        first = 8 + length + 8 * (3 * columns + entries) + 4 * 4 * columns
        seen.update(struct.unpack_from(f"<{entries}I", answer, first))
    return sum(block < NO_BLOCK for block in seen)


def measure_oomph(chromium, args, file):
    """The rows of oomph's column, and (passed, words) of each promise."""
    starts = []
    for is_last in [False] * (args.rounds - 1) + [True]:
        with running_browser(chromium, args.browser, args.limit) as (browser, page), serving(args.oomph, file) as served:
            server, url, listening = served
            opening = until_drawn(page, OOMPH_PICTURE, page.goto, url)
            starts.append((listening, opening))
            print(f"  oomph: {listening:.2f} s + {opening:.2f} s to first picture", file=sys.stderr)
            if not is_last:
                continue
            opened = page.evaluate("() => { window.oomph.frames.length = 0; return performance.now(); }")
            times = frame_times(page, ".timeline canvas.bands")
            drawing = page.evaluate("() => window.oomph.frames")
            page.wait_for_function("() => window.oomph.settled()")
            tiles = page.evaluate(TILE_REQUESTS, opened)
            heap, memory = memory_rows(browser, page)
            now, peak = resident(server.pid)
            run = json.loads(ask(url, "overview"))["runs"][0]
            alone = seen_alone(url, run["events"])
    size = os.path.getsize(file)
    later = max((duration for _, is_later, duration in tiles if is_later), default=0)
    whole = statistics.median(map(sum, starts))
    promises = [
        (whole < 3, f"first picture {whole:.2f} s after the start (below 3 needed)"),
        (statistics.median(times) <= 1000 / 30, f"{1000 / statistics.median(times):.0f} frames a second (at least 30 needed)"),
        (later < 100, f"slowest tile after the first picture: {later:.0f} ms (below 100 needed)"),
        (heap < 300e6, f"page heap {megabytes(heap)}, buffers and DOM included (below 300 needed)"),
        (peak <= size, f"server's peak {megabytes(peak)} (at most the file's size, {megabytes(size)})"),
        (alone == run["blocks"], f"{alone:,} of {run['blocks']:,} allocations can be seen one by one (all needed)"),
    ]
    return {
        "listening": f"{statistics.median(listening for listening, _ in starts):.2f} s",
        "picture": f"{statistics.median(picture for _, picture in starts):.2f} s",
        "whole": f"{whole:.2f} s",
        **frame_rows(times),
        "drawing": spread(drawing),
        "first_tiles": slowest(tiles, False),
        "later_tiles": slowest(tiles, True),
        **memory,
        "server": f"{megabytes(now)} · {megabytes(peak)} ({peak / size:.2f} × the file)",
        "shapes": f"{alone:,} of {run['blocks']:,}",
        "merged": "what is less than a pixel high, until zoomed in",
    }, promises


def serve_modules(page, folder):
    """Answers what PyTorch's page asks of the network from local files."""

    def answer(route):
        name = route.request.url.rpartition("/")[2]
        path = "MemoryViz.js" if name == "MemoryViz.js" else f"modules/{name.removesuffix('.js')}.js"
        headers = {"Access-Control-Allow-Origin": "*"}
        route.fulfill(path=os.path.join(folder, path), content_type="text/javascript", headers=headers)

    page.route("https://**/*", answer)


def peer_rows(browser, page):
    """What a picture of PyTorch's page is like, once it is there."""
    shows = page.evaluate(PEER_SHOWS)
    times = frame_times(page, "svg")
    alone, allocations, peak = shows["shapes"], shows["allocations"], shows["peak"]
    left = f"{allocations - alone:,} allocations, however far zoomed in: {megabytes(peak['band'])} of"
    left += f" {megabytes(peak['total'])} at the peak, {shows['share']:.0%} of the memory on average"
    return {
        **frame_rows(times),
        **memory_rows(browser, page)[1],
        "shapes": f"{alone:,} of {allocations:,}",
        "merged": left if alone < allocations else "none",
    }


def measure_peer(chromium, args, file, memory_viz):
    """The columns of PyTorch's page: as it opens, and with its slider at full detail."""
    length = os.path.getsize(file) * 4 // 3
    if length > LONGEST_STRING:
        words = f"{length / 1e6:,.0f} million characters in one string; the browser's longest has {LONGEST_STRING / 1e6:,.0f}"
        return {"PyTorch's page": {"whole": f"not tried: the page would have {words}"}}
    columns = {"PyTorch's page": {}, "PyTorch's page, all detail": {}}
    opens, full = columns.values()
    with tempfile.TemporaryDirectory() as folder, running_browser(chromium, args.browser, args.limit) as (browser, page):
        path = os.path.join(folder, "page.html")
        making, _ = measure([sys.executable, memory_viz, "trace_plot", file, "-o", path])
        serve_modules(page, args.memoryviz)
        opens["made"] = f"{making:.2f} s, {megabytes(os.path.getsize(path))}"
        rows = opens
        try:
            opening = until_drawn(page, PEER_PICTURE, page.goto, f"file://{path}")
            print(f"  PyTorch: {making:.2f} s + {opening:.2f} s to first picture", file=sys.stderr)
            opens |= {"picture": f"{opening:.2f} s", "whole": f"{making + opening:.2f} s", **peer_rows(browser, page)}
            rows = full
            more = until_drawn(page, FULL_PICTURE, page.evaluate, FULL_DETAIL)
            full |= {"picture": f"{more:.2f} s more", "whole": f"{making + opening + more:.2f} s", **peer_rows(browser, page)}
        except BrowserError as error:
            rows["picture"] = f"none: {error.message.splitlines()[0]}"
    return columns


def table(file, columns):
    contents = megabytes(os.path.getsize(file))
    with contextlib.suppress(OSError), open(file + ".txt") as about:
        contents = about.read().strip()
    yield from (f"## {os.path.basename(file)}", "", f"{contents}.", "")
    yield f"| | {' | '.join(columns)} |"
    yield "|---|" + "--:|" * len(columns)
    for key, words in ROWS.items():
        if any(key in rows for rows in columns.values()):
            yield f"| {words} | {' | '.join(rows.get(key, '–') for rows in columns.values())} |"
    yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE")
    add("--oomph", default=os.path.join(ROOT, "target", "release", "oomph"))
    add("--memoryviz", metavar="FOLDER", help="PyTorch's page; without it only oomph is measured")
    add("--browser", default="/usr/bin/chromium")
    add("--results", default=os.path.join(ROOT, "bench", "results"))
    add("--rounds", type=int, default=3, help="starts of oomph; the table has the median")
    add("--limit", type=int, default=300, help="seconds that a page may take to its first picture")
    args = parser.parse_args()

    memory_viz = get_memory_viz(os.path.join(ROOT, "target", "bench")) if args.memoryviz else None
    today = datetime.date.today().isoformat()
    peer = f"`_memory_viz.py trace_plot` of {TORCH}; its code from local files" if memory_viz else "left out: no --memoryviz"
    report = [
        f"# The viewer, {today}",
        "",
        f"- Machine: {machine()}",
        f"- oomph: {first_line([args.oomph, '--version'])}",
        f"- Browser: {first_line([args.browser, '--version'])}, headless, software rendering, {WINDOW['width']} ×"
        f" {WINDOW['height']} (Playwright {version('playwright')}); it runs before the clock starts",
        f"- PyTorch's page: {peer}",
        f"- oomph's start is the median of {args.rounds}. A first picture counts when it is on the screen. Frames are those of"
        " requestAnimationFrame, while the wheel zooms and the mouse drags in three places of the timeline.",
        "",
    ]
    promises = []
    with sync_playwright() as session:
        for file in sorted(args.files, key=os.path.getsize):
            print(file, file=sys.stderr)
            measure(["dd", f"if={file}", "of=/dev/null", "bs=1M"])  # warms the page cache
            try:
                rows, promises = measure_oomph(session.chromium, args, file)
            except BrowserError as error:
                rows = {"picture": f"none: {error.message.splitlines()[0]}"}
                promises = [(False, f"first picture: {rows['picture']}")]
            columns = {"oomph view": rows}
            commands = [f"oomph view --no-open {os.path.basename(file)}"]
            if memory_viz:
                columns |= measure_peer(session.chromium, args, file, memory_viz)
            if any("made" in rows for rows in columns.values()):
                commands.append(f"python3 torch/cuda/_memory_viz.py trace_plot {os.path.basename(file)} -o page.html")
            report += [*table(file, columns), "```sh", *commands, "```", ""]
    report += ["## Checks, on the largest file", ""]
    report += [f"- {'ok' if passed else 'FAILED'}: {words}" for passed, words in promises] + [""]
    text = "\n".join(report)

    os.makedirs(args.results, exist_ok=True)
    with open(os.path.join(args.results, f"{today}-view.md"), "w", encoding="utf-8") as out:
        out.write(text)
    print(text)
    return 0 if all(passed for passed, _ in promises) else 1


if __name__ == "__main__":
    sys.exit(main())
