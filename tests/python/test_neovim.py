"""`oomph server` in a real editor: Neovim's own client shows findings and applies a fix."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import OOMPH

pytestmark = pytest.mark.nightly

TRAIN = """\
import torch.nn.functional as F

losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""
SESSION = """
vim.cmd('edit train.py')
local client = vim.lsp.start_client({ name = 'oomph', cmd = { %r, 'server' }, root_dir = vim.fn.getcwd() })
vim.lsp.buf_attach_client(0, client)
local function found()
  return table.concat(vim.tbl_map(function(one)
    return table.concat({ one.lnum, one.col, one.end_col, one.code }, ' ')
  end, vim.diagnostic.get(0)), ', ')
end
local function wait(condition) assert(vim.wait(20000, condition, 20), 'nothing within 20 s') end
local seen = io.open('seen.txt', 'w')
wait(function() return found() ~= '' end)
seen:write(found(), '\\n')
-- Another version of Neovim may hand over other items; the first is the fix in all.
vim.ui.select = function(items, _, choose) choose(items[1], 1) end
vim.api.nvim_win_set_cursor(0, { 9, 19 })
vim.lsp.buf.code_action()
wait(function() return vim.api.nvim_buf_get_lines(0, 8, 9, false)[1]:find('detach') end)
seen:write(vim.api.nvim_buf_get_lines(0, 8, 9, false)[1], '\\n')
wait(function() return found() == '' end)
seen:close()
vim.cmd('qall!')
"""


@pytest.mark.skipif(shutil.which("nvim") is None, reason="`make neovim` installs it")
def test_findings_and_a_fix_in_neovim(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "init.lua").write_text(SESSION % str(OOMPH))
    command = ["nvim", "--headless", "--clean", "-u", "init.lua"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    seen = (tmp_path / "seen.txt").read_text().splitlines()
    assert seen == ["8 18 22 OOM101", "    losses.append(loss.detach())"], done.stderr
