"""The workflows, issue forms and release scripts of `.github`: what can be checked without GitHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
SCRIPTS = GITHUB / "scripts"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
VERSION_COMMENT = re.compile(r"# v\d+\.\d+\.\d+$")
WRITE_PERMISSIONS = {
    ("release.yml", "testpypi"): {"id-token"},
    ("release.yml", "attest"): {"id-token", "attestations"},
    ("release.yml", "pypi"): {"id-token"},
    ("release.yml", "github"): {"contents"},
}
"""The jobs that may write, and what. A new one is a deliberate edit of two files."""


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = load(path)["jobs"]
    return found


def commands(path: Path) -> list[str]:
    """Shell text of every step, and what the matrix of a job hands to actions as a script."""
    found = []
    for job in jobs(path).values():
        found += [step["run"] for step in job["steps"] if "run" in step]
        found += [row["before"] for row in job.get("strategy", {}).get("matrix", {}).get("include", []) if "before" in row]
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_there_are_the_three_workflows() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_and_names_its_version(path: Path) -> None:
    lines = [line.strip() for line in path.read_text().splitlines() if re.match(r"\s*(- )?uses:", line)]
    assert lines
    for line in lines:
        action, _, comment = line.removeprefix("- ").removeprefix("uses:").strip().partition(" ")
        assert PINNED.fullmatch(action), line
        assert VERSION_COMMENT.fullmatch(comment.strip()), line


def test_an_action_has_one_commit_in_all_workflows() -> None:
    uses = re.findall(r"uses: (\S+)@(\S+ # \S+)", "".join(path.read_text() for path in WORKFLOWS))
    names = {name for name, _ in uses}
    assert len(set(uses)) == len(names)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_no_permissions_and_jobs_only_what_they_need(path: Path) -> None:
    assert load(path)["permissions"] == {}
    for name, job in jobs(path).items():
        assert isinstance(job["permissions"], dict), name
        writes = {scope for scope, access in job["permissions"].items() if access != "read"}
        assert writes == WRITE_PERMISSIONS.get((path.name, name), set()), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_job_has_a_timeout_and_a_fixed_machine_image(path: Path) -> None:
    assert "concurrency" in load(path)
    for name, job in jobs(path).items():
        assert 0 < job["timeout-minutes"] <= 300, name
        assert "latest" not in job["runs-on"], name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_checkouts_leave_no_credentials_and_scripts_contain_no_expressions(path: Path) -> None:
    for job in jobs(path).values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            # An expression in a script is pasted into it before the shell sees it; `env` is safe.
            assert "${{" not in step.get("run", ""), step


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_make_target_and_file_of_a_workflow_exists(path: Path) -> None:
    text = "\n".join(commands(path))
    named = {word for line in re.findall(r"\bmake ([\w -]+)", text) for word in line.split() if not word.isupper()}
    assert named <= make_targets()
    files = re.findall(r"(?:\.github|fixtures|oracle|fuzz)/[\w/.-]+\.(?:sh|py|xz)", text)
    for file in files:
        assert (ROOT / file).is_file(), file
        assert not file.endswith(".sh") or os.access(ROOT / file, os.X_OK), f"{file} is not executable"
    assert named or files


def test_the_last_check_waits_for_every_other_job() -> None:
    ci = jobs(WORKFLOWS[0])
    assert set(ci["passed"]["needs"]) == set(ci) - {"passed"}


def test_a_release_restores_no_cache() -> None:
    text = (GITHUB / "workflows/release.yml").read_text()
    assert "actions/cache@" not in text and "rust-cache@" not in text and "cache:" not in text


def test_release_jobs_publish_only_tags() -> None:
    release = jobs(GITHUB / "workflows/release.yml")
    for name in ("attest", "pypi", "github"):
        assert release[name]["if"] == "github.event_name == 'push'", name
    assert load(GITHUB / "workflows/release.yml")[True]["push"] == {"tags": ["v*"]}  # YAML reads the key `on` as true


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_have_what_github_requires(path: Path) -> None:
    form = load(path)
    assert form["name"] and form["description"] and form["labels"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    for field in fields:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"] and isinstance(field["validations"]["required"], bool)


@pytest.mark.parametrize("name", ["bug.yml", "wrong_answer.yml"])
def test_reports_ask_for_the_bundle_and_the_machine(name: str) -> None:
    required = [field["attributes"]["label"] for field in load(GITHUB / "ISSUE_TEMPLATE" / name)["body"] if "id" in field]
    assert {"Output of `oomph bundle INPUT`", "Output of `oomph doctor`"} <= set(required)


def test_dependabot_watches_every_manifest() -> None:
    watched = set()
    for update in load(GITHUB / "dependabot.yml")["updates"]:
        assert update["schedule"]["interval"] == "weekly" and update["groups"]
        watched |= {(update["package-ecosystem"], folder) for folder in update.get("directories", [update.get("directory")])}
    expected = {("cargo", "/"), ("cargo", "/fuzz"), ("pip", "/tests/python"), ("github-actions", "/")}
    assert expected | {("npm", "/web"), ("npm", "/editors/vscode")} <= watched


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPTS / name, *map(str, arguments)], capture_output=True, text=True)


def test_all_files_name_the_same_version() -> None:
    done = script("release.py", "check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("version ")


def test_a_tag_of_another_version_is_refused() -> None:
    done = script("release.py", "check", "v99.0.0")
    assert done.returncode == 1
    assert "the tag is v99.0.0" in done.stderr and "CHANGELOG.md: no section" in done.stderr


def test_every_link_of_the_published_readme_is_absolute_and_leads_to_a_file() -> None:
    published = script("release.py", "readme").stdout
    version = script("release.py", "check").stdout.split()[1]
    targets = re.findall(r"\]\(([^)\s]+)\)", published)
    assert targets and all(target.startswith("https://") for target in targets)
    files = [re.search(rf"/v{re.escape(version)}/([^#]+)", target) for target in targets]
    found = [ROOT / file[1] for file in files if file]
    assert len(found) == len(re.findall(r"\]\((?!https?://|#)", (ROOT / "README.md").read_text()))
    assert all(path.is_file() for path in found)
    assert "![The same leak in `oomph view`" in published and "](https://raw.githubusercontent.com/" in published


def release_files(folder: Path) -> list[Path]:
    version = script("release.py", "check").stdout.split()[1]
    tags = [
        "manylinux_2_17_x86_64.manylinux2014_x86_64",
        "manylinux_2_17_aarch64.manylinux2014_aarch64",
        "musllinux_1_2_x86_64",
        "musllinux_1_2_aarch64",
        "macosx_10_12_x86_64",
        "macosx_11_0_arm64",
        "win_amd64",
    ]
    include = jobs(GITHUB / "workflows/release.yml")["wheels"]["strategy"]["matrix"]["include"]
    archives = [
        f"oomph-{row['target']}.{'zip' if 'windows' in row['target'] else 'tar.gz'}"
        for row in include
        if not row["target"].endswith("-musl")
    ]
    assert len(include) == len(tags)
    names = [f"oomph-{version}.tar.gz", *archives, "oomph.vsix", *(f"oomph-{version}-cp310-abi3-{tag}.whl" for tag in tags)]
    for name in names:
        (folder / name).write_text(name)
    return [folder / name for name in names]


def test_a_complete_release_is_collected_with_its_checksums(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = release_files(tmp_path / "in")
    done = script("collect.py", tmp_path / "in", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    listed = (tmp_path / "out/SHA256SUMS").read_text()
    assert sorted(re.findall(r"^[0-9a-f]{64}  (\S+)$", listed, re.MULTILINE)) == sorted(path.name for path in files)
    assert len(list((tmp_path / "out/packages").iterdir())) == 8
    assert len(list((tmp_path / "out/archives").iterdir())) == 6


def test_a_release_that_lacks_a_package_or_has_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    release_files(tmp_path / "in")[-1].rename(tmp_path / "in/other.whl")
    done = script("collect.py", tmp_path / "in", tmp_path / "out")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert "Windows x64 wheel: 0 files" in done.stderr and "unexpected file: other.whl" in done.stderr
