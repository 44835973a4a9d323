#!/usr/bin/env python3
"""The pictures of the documentation: the real page on real recordings, in a real browser.

target/venv/bin/python docs/screenshots.py          after `make test` or `cargo build`
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))

from playwright.sync_api import sync_playwright

from viewing import PageProbe, launched, served

ZOO = ROOT / "fixtures/zoo"
LEAK = ZOO / "leak_infer_outputs.pickle.xz"
FRAGMENTED = ZOO / "frag_variable_length.pickle.xz"

PICTURES = {
    "view-leak": ([LEAK], "group=site:0", "light"),
    "view-blocks": ([FRAGMENTED], "by=block&span=26000-28000", "dark"),
    "view-flame": ([FRAGMENTED], "tab=flame", "light"),
    "view-compare": ([LEAK, ZOO / "clean_resnet50_amp.pickle.xz"], "", "light"),
    "view-holders": ([ROOT / "fixtures/recordings/holders"], "tab=holders", "light"),
}


def main() -> None:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        for name, (inputs, address, scheme) in PICTURES.items():
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
            with served(*inputs) as url:
                PageProbe(page).open(f"{url}#{address}")
                page.wait_for_timeout(300)
                page.screenshot(path=ROOT / f"docs/images/{name}.png")
            page.close()
            print(f"docs/images/{name}.png")


if __name__ == "__main__":
    main()
