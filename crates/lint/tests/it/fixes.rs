//! Fixes: which are offered, which of them are safe, and where they are inserted.

use lint::{Applicability, PythonSource, RULES, check, fix};

/// Returns the applicability of the fixes in a program, in order.
fn offered(text: &str) -> Vec<Applicability> {
    let found = check(&PythonSource::python(text.as_bytes()), RULES).expect("Python");
    assert!(!found.is_empty(), "nothing found in\n{text}");
    found.iter().filter_map(|found| Some(found.fix.as_ref()?.applicability)).collect()
}

/// Returns the program after its fixes.
fn fixed(text: &str, allowed: Applicability) -> String {
    let source = PythonSource::python(text.as_bytes());
    let found = check(&source, RULES).expect("Python");
    fix(source, found, RULES, &lint::Imports::default(), allowed, |_| true).source.text().to_owned()
}

/// Builds an evaluation that OOM301 reports, between two texts; `body` begins the loop's body.
fn evaluation(above: &str, definition: &str, body: &str) -> String {
    format!(
        "\
{above}
{definition}
    correct = 0
    for x, y in loader:
{body}        correct += (model(x).argmax(1) == y).sum().item()
    return correct
"
    )
}

const EVALUATE: &str = "def evaluate(model, loader):";

#[test]
fn a_decorator_is_offered_as_unsafe_where_torch_is_imported_above() {
    for above in [
        "import torch\n",
        "import torch.nn\n",
        "import torch\nimport torch.nn as nn\n",
        "import torch as th\n",
        "import torch\n\ndef other():\n    torch = 1\n    return torch\n",
    ] {
        let text = evaluation(above, EVALUATE, "");
        assert_eq!(offered(&text), [Applicability::Unsafe], "{text}");
        let name = if above.contains("as th") { "th" } else { "torch" };
        assert_eq!(fixed(&text, Applicability::Safe), text);
        let decorated = text.replace(EVALUATE, &format!("@{name}.no_grad()\n{EVALUATE}"));
        assert_eq!(fixed(&text, Applicability::Unsafe), decorated);
    }
}

#[test]
fn no_decorator_is_offered_where_its_name_may_mean_something_else() {
    for above in [
        "def load():\n    import torch\n    return torch\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
        "import torch\ndel torch\n",
        "import torch\ntorch = None\n",
        "import torch\nfor torch in range(3):\n    pass\n",
        "import torch\nwith open('a') as torch:\n    pass\n",
        "import torch\nif (torch := None):\n    pass\n",
        "import torch\ndef torch():\n    pass\n",
        "import torch\nimport jax as torch\n",
        "import torch\nfrom helpers import *\n",
        "import torch\ndef spoil():\n    global torch\n    torch = None\n",
        "from compat import torch\n",
    ] {
        let text = evaluation(above, EVALUATE, "");
        assert_eq!(offered(&text), [], "{text}");
    }
    // After the function, and inside of it.
    let below = format!("{}\nimport torch\n", evaluation("import numpy", EVALUATE, ""));
    assert_eq!(offered(&below), [], "{below}");
    let inside = evaluation("import os", &format!("{EVALUATE}\n    import torch"), "");
    assert_eq!(offered(&inside), [], "{inside}");
    let parameter = evaluation("import torch", "def evaluate(model, loader, torch=None):", "");
    assert_eq!(offered(&parameter), [], "{parameter}");
}

#[test]
fn no_decorator_is_offered_where_it_cannot_work() {
    for text in [
        evaluation("import torch\n", &format!("async {EVALUATE}"), ""),
        evaluation("import torch\n", &format!("@torch.jit.script\n{EVALUATE}"), ""),
        evaluation("import torch\n", EVALUATE, "        yield x\n"),
    ] {
        assert_eq!(offered(&text), [], "{text}");
    }
}

#[test]
fn an_evaluation_that_differentiates_in_a_helper_is_not_reported() {
    let adapt = "import torch\n\ndef adapt(model, x):\n    model(x).sum().backward()\n";
    let deeper = format!("{adapt}\ndef prepare(model, x):\n    adapt(model, x)\n");
    for (above, helper) in [(adapt, "adapt"), (&deeper, "prepare")] {
        let text = evaluation(above, EVALUATE, &format!("        {helper}(model, x)\n"));
        assert_eq!(fixed(&text, Applicability::Unsafe), text);
    }
}

#[test]
fn a_decorator_is_inserted_after_existing_ones() {
    let text = "\
import torch

class Model:
    @staticmethod  # def
    def evaluate(model, loader):
        correct = 0
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
        return correct
";
    let expected = text.replace("    def evaluate", "    @torch.no_grad()\n    def evaluate");
    assert_eq!(fixed(text, Applicability::Unsafe), expected);
}

/// Builds a training loop that keeps losses in `losses`, with a line before it and one at its end.
fn training(loss: &str, end: &str) -> String {
    format!(
        "\
import torch
import torch.nn.functional as F

def train(model, loader, opt, criterion):
    losses = []
    for x, y in loader:
        {loss}
        losses.append(loss)
        loss.backward()
        opt.step()
        opt.zero_grad()
    {end}
"
    )
}

const LOSS: &str = "loss = F.cross_entropy(model(x), y)";

#[test]
fn detaching_is_safe_where_only_numbers_leave_the_function() {
    for end in [
        "print(len(losses))",
        "return float(sum(losses)) / len(losses)",
        "return (sum(losses) / len(losses)).item()",
        "return sum(loss.item() for loss in losses)",
        "return [float(value) for value in losses]",
        "print(losses[-1].item())",
        "losses.clear()",
    ] {
        let text = training(LOSS, end);
        assert_eq!(offered(&text), [Applicability::Safe], "{text}");
        assert_eq!(fixed(&text, Applicability::Safe), text.replace("append(loss)", "append(loss.detach())"));
    }
}

#[test]
fn detaching_is_unsafe_where_the_difference_may_be_visible() {
    for (loss, end) in [
        (LOSS, "return losses"),
        (LOSS, "return sum(losses)"),
        (LOSS, "print(losses)"),
        (LOSS, "model.losses = losses"),
        (LOSS, "return lambda: losses"),
        (LOSS, "keep(losses)"),
        (LOSS, "return float(keep(losses))"),
        (LOSS, "kept = losses"),
        (LOSS, "return locals()"),
        (LOSS, "return [value for value in losses]"),
        // Not known to be a tensor.
        ("loss = criterion(model(x), y)", "print(len(losses))"),
        ("loss = model(x).sum() if y is None else F.cross_entropy(model(x), y)", "print(len(losses))"),
    ] {
        let text = training(loss, end);
        let offered = offered(&text);
        assert!(!offered.contains(&Applicability::Safe), "{text}");
        assert_eq!(fixed(&text, Applicability::Safe), text);
    }
}

#[test]
fn dropping_gradients_and_loading_on_the_host_are_unsafe() {
    let zero = "\
import torch

def train(model, loader, opt):
    for x in loader:
        model(x).sum().backward()
        opt.step()
        opt.zero_grad(set_to_none=False)
";
    assert_eq!(offered(zero), [Applicability::Unsafe]);
    let load = "\
import torch

model = torch.nn.Linear(3, 3).cuda()
model.load_state_dict(torch.load('model.pt'))
";
    assert_eq!(offered(load), [Applicability::Unsafe]);
    let assigned = load.replace("'model.pt')", "'model.pt'), assign=True");
    assert_eq!(offered(&assigned), []);
}

#[test]
fn lists_and_tuples_are_not_detached() {
    for kept in ["losses = losses + [loss]", "d[i], total = loss, total + loss"] {
        let text = format!(
            "\
import torch.nn.functional as F
losses, d, total = [], {{}}, 0
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    {kept}
print(losses, total)
"
        );
        let after = fixed(&text, Applicability::Unsafe);
        assert!(!after.contains("]).detach()") && !after.contains("loss).detach()"), "{after}");
    }
}
