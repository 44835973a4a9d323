//! Imports that a file asks for: only definitions that could change its findings answer.

use lint::{Imports, ModuleReport, PythonSource, check_module};

fn report(program: &str) -> ModuleReport {
    check_module(&PythonSource::python(program.as_bytes()), &[], &Imports::default()).expect("Python")
}

/// Returns whether `helper` of one file answers what another asks for.
#[track_caller]
fn is_answered(asking: &str, helper: &str) -> bool {
    let asked = report(&format!("import torch\nfrom .tools import helper\n\n{asking}")).asked;
    let [import] = &asked[..] else { panic!("one import is asked for: {asked:?}") };
    assert_eq!(import.path(), ".tools.helper");
    let summary = report(&format!("import torch\n\n{helper}")).summary;
    import.is_answered_by(summary.definition("helper").expect("a definition that callers learn from"))
}

#[test]
fn a_decorator_answers_if_it_turns_gradients_off() {
    let evaluate = "\
@helper
def evaluate(model, loader):
    for x, y in loader:
        print(model(x).argmax(1))
";
    assert!(!is_answered(evaluate, "def helper(function):\n    return function\n"));
    let no_grad = "\
def helper(function):
    def wrapper(*args):
        with torch.no_grad():
            return function(*args)
    return wrapper
";
    assert!(is_answered(evaluate, no_grad));
}

#[test]
fn a_decorator_that_is_also_called_answers_as_a_function() {
    let both = "\
@helper
def step(model, x):
    return helper(model(x))
";
    assert!(is_answered(both, "def helper(value):\n    return value\n"));
}

#[test]
fn a_function_answers_if_it_returns_a_tensor_that_it_is_given() {
    let call = |arguments: &str| format!("def step(model, x):\n    return helper({arguments})\n");
    let first = "def helper(chunk, size):\n    return chunk * 2\n";
    let second = "def helper(size, chunk):\n    return chunk * 2\n";
    assert!(is_answered(&call("model(x), 2"), first));
    assert!(!is_answered(&call("model(x), 2"), second));
    assert!(is_answered(&call("size=2, chunk=model(x)"), first));
    assert!(!is_answered(&call("size=model(x), chunk=2"), first));
    // A model is not a tensor, and a tensor that is not given has no graph that is known.
    assert!(!is_answered(&call("model, 2"), first));
    assert!(!is_answered(&call("model, 2"), "def helper(a, b):\n    return a * 2, b * 2\n"));
}

#[test]
fn a_function_answers_with_what_it_computes_keeps_or_differentiates() {
    let call = "def step(model, x):\n    return helper(model(x), 2)\n";
    assert!(is_answered(call, "def helper(out, n):\n    return model(n)\n"));
    assert!(is_answered(call, "kept = []\ndef helper(out, n):\n    kept.append(out)\n"));
    assert!(!is_answered(call, "kept = []\ndef helper(out, n):\n    kept.append(n)\n"));
    assert!(is_answered(call, "def helper(out, n):\n    out.backward()\n"));
    assert!(!is_answered(call, "def helper(out, n):\n    n.backward()\n"));
}

#[test]
fn a_loss_function_always_answers() {
    let asking =
        "import torch\nfrom .tools import my_loss\n\ndef step(model, x):\n    return my_loss(model(x), 2)\n";
    let asked = report(asking).asked;
    let summary = report("import torch\n\ndef my_loss(out, n):\n    return n * 2\n").summary;
    let definition = summary.definition("my_loss").expect("a definition that callers learn from");
    assert!(asked[0].is_answered_by(definition), "what only has the name of a loss is a number");
}

#[test]
fn a_class_answers() {
    let train = "\
def train(model, loader):
    tracker = helper(model)
    for x in loader:
        tracker.update(model(x))
";
    assert!(is_answered(
        train,
        "class helper:\n    def update(self, value):\n        self.values.append(value)\n"
    ));
}
