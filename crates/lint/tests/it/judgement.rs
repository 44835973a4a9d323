//! Distinctions that the rules make: the same line with another cost, and code that only looks like a
//! mistake.

use lint::{PythonSource, RULES, check};

/// Returns the findings of a program as text: line, severity, rule.
fn findings(program: &str) -> Vec<String> {
    let source = PythonSource::python(program.as_bytes());
    let found = check(&source, RULES).expect("Python");
    found
        .iter()
        .map(|one| {
            format!("{} {} {}", source.place(one.range.start).line, one.severity.name(), one.rule.name)
        })
        .collect()
}

/// Checks a program with the imports added; its first line is line 1.
#[track_caller]
fn judge(program: &str, expected: &[&str]) {
    let program = format!("{}\n{IMPORTS}", program.trim_start_matches('\n'));
    assert_eq!(findings(&program), expected, "{program}");
}

/// Imports, added after the program so that its lines count from 1; neither Python nor the linter minds.
const IMPORTS: &str =
    "import torch, copy, functools, gc, random\nimport torch.nn as nn\nimport torch.nn.functional as F";

const NOTHING: &[&str] = &[];

#[test]
fn what_a_kept_loss_costs_depends_on_backward() {
    judge(
        "
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    history.append(loss)
",
        &["4 low loss-kept-in-list"],
    );
    // The same if it is kept before `backward()`: the object is the same.
    judge(
        "
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    history.append(loss)
    loss.backward()
",
        &["3 low loss-kept-in-list"],
    );
    judge(
        "
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    history.append(loss)
    loss.backward(retain_graph=True)
",
        &["3 high loss-kept-in-list", "4 medium retain-graph-in-loop"],
    );
    judge(
        "
model.eval()
for x, y in val_loader:
    loss = F.mse_loss(model(x), y)
    history.append(loss)
",
        &["3 medium eval-mistaken-for-no-grad", "4 high loss-kept-in-list"],
    );
    for kept in ["loss.item()", "loss.detach()", "float(loss)", "loss.detach().cpu()", "loss.data"] {
        judge(
            &format!(
                "\
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    history.append({kept})
"
            ),
            NOTHING,
        );
    }
    for kept in ["loss.clone()", "loss * 2", "loss.cpu()", "loss.mean()"] {
        judge(
            &format!(
                "\
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    history.append({kept})
"
            ),
            &["4 low loss-kept-in-list"],
        );
    }
}

#[test]
fn a_repeated_key_keeps_one_value_and_a_new_key_keeps_all() {
    let program = |key: &str| {
        format!(
            "\
for step, (x, y) in enumerate(loader):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    cache[{key}] = loss
"
        )
    };
    judge(&program("'last'"), NOTHING);
    judge(&program("name"), NOTHING);
    judge(&program("step"), &["4 low loss-kept-in-list"]);
    judge(&program("f'loss{step}'"), &["4 low loss-kept-in-list"]);
}

#[test]
fn all_ways_to_turn_gradients_off_are_recognized() {
    let loop_ = "for x, y in val_loader:\n        total += F.mse_loss(model(x), y)\n";
    judge(&format!("with torch.no_grad():\n    {loop_}"), NOTHING);
    judge(&format!("with torch.inference_mode():\n    {loop_}"), NOTHING);
    judge(&format!("with torch.set_grad_enabled(False):\n    {loop_}"), NOTHING);
    judge(&format!("with torch.set_grad_enabled(phase == 'train'):\n    {loop_}"), NOTHING);
    judge(&format!("@torch.no_grad()\ndef evaluate(total):\n    {loop_}"), NOTHING);
    judge(&format!("@torch.inference_mode\ndef evaluate(total):\n    {loop_}"), NOTHING);
    judge(&format!("torch.set_grad_enabled(False)\ndef evaluate(total):\n    {loop_}"), NOTHING);
    // A function with only such callers.
    judge(&format!("def evaluate(total):\n    {loop_}\nwith torch.no_grad():\n    evaluate(0)\n"), NOTHING);
    judge(
        &format!("def evaluate(total):\n    {loop_}"),
        &["3 high loss-accumulated-with-graph", "3 medium evaluation-with-gradients"],
    );
}

#[test]
fn a_sum_for_backward_is_not_reported() {
    judge(
        "
for x, y in loader:
    total = 0
    for head in heads:
        total += F.mse_loss(model(x), y)
    total.backward()
",
        NOTHING,
    );
    judge(
        "
losses = []
for x, y in loader:
    losses.append(F.mse_loss(model(x), y))
torch.stack(losses).mean().backward()
",
        NOTHING,
    );
    judge(
        "
running = 0
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    running = 0.9 * running + 0.1 * loss
",
        &["5 low loss-accumulated-with-graph"],
    );
}

#[test]
fn code_that_only_looks_like_a_mistake_is_not_reported() {
    // Policy gradients are kept for a later `backward()`.
    judge(
        "
def select_action(state):
    probs = policy(state)
    m = torch.distributions.Categorical(probs)
    action = m.sample()
    policy.saved.append(m.log_prob(action))
    return action.item()

def finish():
    losses = []
    for log_prob, R in zip(policy.saved, returns):
        losses.append(-log_prob * R)
    loss = torch.cat(losses).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del policy.saved[:]
",
        NOTHING,
    );
    // A model that collects its time steps.
    judge(
        "
class Decoder(nn.Module):
    def forward(self, x, h):
        outputs = []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            outputs.append(self.out(h))
        return torch.stack(outputs, 1)
",
        NOTHING,
    );
    // Two passes through one graph need `retain_graph`.
    judge(
        "
for real in loader:
    fake = netG(noise)
    errD = criterion(netD(fake), zeros)
    errD.backward(retain_graph=True)
    errG = criterion(netD(fake), ones)
    errG.backward()
    optimizer.step(); optimizer.zero_grad()
",
        NOTHING,
    );
}

#[test]
fn values_that_stay_few_or_small_are_not_reported() {
    // Only the last few, and only the best one.
    judge(
        "
from collections import deque
recent = deque(maxlen=10)
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    recent.append(loss)
    if loss < best:
        best = loss
        state = copy.deepcopy(model.state_dict())
",
        NOTHING,
    );
    // Accuracy is counted in integers.
    judge(
        "
for x, y in loader:
    out = model(x)
    F.cross_entropy(out, y).backward()
    correct += (out.argmax(1) == y).sum()
    predictions.append(out.max(1)[1])
",
        NOTHING,
    );
    // Occasional calls are not in every step.
    judge(
        "
for step, (x, y) in enumerate(loader):
    F.mse_loss(model(x), y).backward()
    if step % 100 == 0:
        torch.cuda.empty_cache()
",
        NOTHING,
    );
}

#[test]
fn values_are_followed_through_functions_and_objects() {
    judge(
        "
def step(x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss
for x, y in loader:
    losses.append(step(x, y))
",
        &["6 low loss-kept-in-list"],
    );
    judge(
        "
def step(x, y):
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss.item()
for x, y in loader:
    losses.append(step(x, y))
",
        NOTHING,
    );
    judge(
        "
class Meter:
    def __init__(self):
        self.sum = 0
    def update(self, value):
        self.sum += value
meter = Meter()
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    meter.update(loss)
",
        &["5 low loss-accumulated-with-graph"],
    );
}

#[test]
fn a_hook_that_overwrites_by_name_keeps_one_set() {
    judge(
        "\
acts = {}
def hook(m, i, o):
    acts['x'] = o.detach()
model.layer.register_forward_hook(hook)
",
        NOTHING,
    );
    judge(
        "\
acts = []
def hook(m, i, o):
    acts.append(o.detach())
model.layer.register_forward_hook(hook)
",
        &["3 high hook-keeps-activations"],
    );
    judge(
        "\
acts = []
def hook(m, i, o):
    acts.append(o.mean().item())
model.layer.register_forward_hook(hook)
",
        NOTHING,
    );
    judge(
        "\
acts = []
def hook(m, i, o):
    acts.append(o)
model.layer.register_forward_hook(hook)
for x in data:
    model(x)
    acts.clear()
",
        NOTHING,
    );
    judge(
        "acts = []\nmodel.layer.register_forward_hook(lambda m, i, o: acts.append(o))\n",
        &["2 high hook-keeps-activations"],
    );
}

#[test]
fn comments_suppress_a_line_or_a_rule() {
    let program = |comment: &str| {
        format!(
            "\
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    history.append(loss)  {comment}
"
        )
    };
    judge(&program("# oomph: ignore"), NOTHING);
    judge(&program("# oomph: ignore[loss-kept-in-list]"), NOTHING);
    judge(&program("# oomph: ignore[OOM101, OOM2]"), NOTHING);
    judge(&program("# oomph: ignore[OOM2]"), &["4 low loss-kept-in-list"]);
    judge(&program("# oomph:ignore is spelled otherwise"), NOTHING);
    judge(&program("# nothing about it"), &["4 low loss-kept-in-list"]);
}

#[test]
fn any_depth_of_nesting_is_survived() {
    for deep in [
        format!("import torch\nx = {}1{}\n", "(".repeat(100_000), ")".repeat(100_000)),
        format!("import torch\nx = {}1\n", "-".repeat(100_000)),
        format!("import torch\nx = {}1\n", "not ".repeat(50_000)),
        format!("import torch\nx = {}1\n", "1 + ".repeat(50_000)),
        format!("import torch\nx = {}1\n", "1 ** ".repeat(50_000)),
        format!("import torch\nx = a{}\n", ".b".repeat(50_000)),
        format!("import torch\nx = {}1\n", "lambda: ".repeat(50_000)),
        format!(
            "import torch\n{}pass\n",
            (0..200).map(|at| format!("{}if x:\n", " ".repeat(at))).collect::<String>() + &" ".repeat(200)
        ),
    ] {
        // Either it is valid Python, or there is a syntax error.
        let _ = check(&PythonSource::python(deep.as_bytes()), RULES);
    }
}

#[test]
fn any_length_of_a_chain_of_calls_is_survived() {
    judge(&format!("text = words(){}\n", ".replace('a', 'b')".repeat(60)), NOTHING);
}

#[test]
fn detached_values_are_not_part_of_the_graph() {
    // The only pass through the discriminator's graph, from which the generator's output was detached.
    judge(
        "
for real in loader:
    fake = netG(noise)
    errG = criterion(netD(fake), ones)
    errG.backward()
    errD = criterion(netD(fake.detach()), zeros)
    errD.backward(retain_graph=True)
    optimizer.step(); optimizer.zero_grad()
",
        &["6 medium retain-graph-in-loop"],
    );
    // `backward()` on what was computed from a detached copy frees nothing of the original.
    judge(
        "
outs = []
for x, y in loader:
    out = model(x)
    loss = F.mse_loss(head(out.detach()), y)
    loss.backward()
    outs.append(out)
print(len(outs))
",
        &["6 high outputs-kept-with-graph"],
    );
}

#[test]
fn every_kind_of_lru_cache_keeps_the_modules_in_its_keys() {
    judge(
        "
from vision.utils import compile_compatible_method_lru_cache, weak_lru_cache, instance_lru_cache
class Attention(nn.Module):
    @compile_compatible_method_lru_cache(maxsize=32)
    def grid(self, height, width):
        return torch.ones(height, width)
    @weak_lru_cache()
    def other(self, height):
        return torch.ones(height)
    @instance_lru_cache()
    def third(self, height):
        return torch.ones(height)
",
        &["3 medium cached-method-keeps-self"],
    );
    judge(
        "
@functools.lru_cache(maxsize=None)
def parameters_of(module: nn.Module, prefix):
    return [name for name, _ in module.named_parameters(prefix)]
@functools.lru_cache()
def count(model):
    return sum(p.numel() for p in model.parameters())
@functools.lru_cache()
def path_of(model, name):
    return model + name
",
        &["1 medium cached-method-keeps-self", "4 medium cached-method-keeps-self"],
    );
}

#[test]
fn tensors_on_ctx_are_seen_in_tuples_and_when_forward_makes_them() {
    judge(
        "
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        mask = torch.zeros(x.shape, device=x.device)
        out = x * scale
        ctx.kept = (x, scale)
        ctx.mask = mask
        ctx.parts = [out, 3]
        ctx.first, ctx.second = x, 4
        ctx.shape = x.shape
        ctx.sizes = (x.size(0), x.size(1))
        return out
",
        &["6 low tensor-on-ctx", "7 low tensor-on-ctx", "8 medium tensor-on-ctx", "9 low tensor-on-ctx"],
    );
}

#[test]
fn a_detached_factor_does_not_hide_retain_graph() {
    judge(
        "
def update(weight, target):
    for x, y in loader:
        F.mse_loss(model(x), y).backward(retain_graph=True)
    policy_loss = (weight * target.detach()).mean()
    policy_loss.backward()
",
        &["3 medium retain-graph-in-loop"],
    );
    judge(
        "
def compare(model, other_model, x):
    for _ in range(8):
        model(x).sum().backward(retain_graph=True)
        other_model(x).sum().backward(retain_graph=True)
",
        &["3 medium retain-graph-in-loop", "4 medium retain-graph-in-loop"],
    );
}

#[test]
fn losses_in_containers_are_followed() {
    judge(
        "
for x, y in loader:
    out = model(x, y)
    out['loss'].backward()
    history.append(out['loss'])
",
        &["4 low loss-kept-in-list"],
    );
    judge(
        "
losses = []
for x, y in loader:
    losses.append(F.mse_loss(model(x), y))
    losses[-1].backward()
",
        &["3 low loss-kept-in-list"],
    );
    judge(
        "
for x, y in loader:
    losses = model(x, y)
    loss = sum(losses.values())
    loss.backward()
    history.append(losses['box'])
",
        &["5 low loss-kept-in-list"],
    );
    judge(
        "
for x, y in loader:
    losses = {}
    losses['a'] = F.mse_loss(model(x), y)
    losses['a'].backward()
    history.append(losses['a'].item())
",
        NOTHING,
    );
}

#[test]
fn a_step_may_be_a_method_that_a_loop_elsewhere_calls() {
    judge(
        "
class Trainer:
    def __init__(self):
        self.history = []
    def step(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.history.append(loss)
    def one(self, batch):
        self.step(batch[0], batch[1])
    def run(self):
        for batch in self.data:
            self.one(batch)
",
        &["7 low loss-kept-in-list"],
    );
}

#[test]
fn meters_also_take_lists() {
    judge(
        "
from utils import AverageMeter
meter = AverageMeter()
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    meter.update([loss, 1])
",
        &["6 low loss-accumulated-with-graph"],
    );
}

#[test]
fn reductions_over_processes_keep_the_graph() {
    for reduced in ["hvd.allreduce(loss)", "hvd.allgather(loss)", "dist.nn.all_reduce(loss)"] {
        judge(
            &format!(
                "\
import horovod.torch as hvd, torch.distributed as dist, torch.distributed.nn
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    history.append({reduced})
"
            ),
            &["5 low loss-kept-in-list"],
        );
    }
}

#[test]
fn an_exit_stack_can_turn_gradients_off() {
    judge(
        "
from contextlib import ExitStack
def evaluate(model, loader):
    model.eval()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for x, y in loader:
            losses.append(F.mse_loss(model(x), y))
",
        NOTHING,
    );
}

#[test]
fn a_model_that_differentiates_needs_gradients_in_evaluation() {
    judge(
        "
class Energy(nn.Module):
    def forward(self, x):
        energy = self.net(x).sum()
        return energy, torch.autograd.grad(energy, x)[0]
def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        energy, force = model(x)
        total = (force - y).abs().mean().item()
",
        NOTHING,
    );
}

#[test]
fn a_number_per_epoch_is_low() {
    judge(
        "
history = []
for epoch in range(100):
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        error = (out - y).abs().mean()
        loss.backward()
    history.append(error)
",
        &["8 low metric-kept-with-graph"],
    );
}

#[test]
fn a_checkpoint_that_only_one_process_loads_is_not_loaded_by_all() {
    let program = |guard: &str| {
        format!(
            "\
import torch.distributed as dist
def main(rank):
    model = nn.Linear(8, 8)
    if {guard}:
        model.load_state_dict(torch.load('model.pt'))
    model.cuda()
"
        )
    };
    for guard in ["rank == 0", "dist.get_rank() == 0", "is_main_process()", "args.local_rank in [-1, 0]"] {
        judge(&program(guard), NOTHING);
    }
    for guard in ["rank != 0", "not is_main_process()", "args.resume"] {
        judge(&program(guard), &["5 medium load-without-map-location"]);
    }
}

#[test]
fn a_term_of_the_loss_is_freed_with_it() {
    judge(
        "
total = 0
for x, y in loader:
    out, value = model(x)
    policy_loss = F.mse_loss(out, y)
    value_loss = F.mse_loss(value, y)
    loss = policy_loss + 0.5 * value_loss
    loss.backward()
    total += 2 * value_loss
",
        &["8 low loss-accumulated-with-graph"],
    );
}

#[test]
fn a_variable_that_each_iteration_assigns_first_carries_nothing() {
    judge(
        "
net.eval()
for x in first_loader:
    out = net(x)
for x in second_loader:
    out = net(x)
    out = head(out)
    print(out.sum().item())
",
        &["3 medium eval-mistaken-for-no-grad", "5 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn a_hook_that_overwrites_by_module_keeps_one_set() {
    judge(
        "\
class Stats:
    def hook(self, module, inputs, output):
        self.last[module] = output.detach()
    def watch(self, model):
        model.layer.register_forward_hook(self.hook)
",
        NOTHING,
    );
}

#[test]
fn parts_of_one_input_are_not_steps_of_an_evaluation() {
    judge(
        "
class Ratio:
    def __init__(self):
        self.net = nn.Linear(8, 8)
    def value(self, states):
        parts = [self.net(states) for i in range(4)]
        return torch.stack(parts).sum()
    def value_for_eval(self, states):
        total = torch.zeros(8)
        for i in range(4):
            total += self.net(states)
        return total, states
",
        NOTHING,
    );
    judge(
        "
def main(learner):
    net = nn.Linear(8, 8)
    for batch in loader:
        extra = 0
        for x in batch.items:
            extra += F.mse_loss(net(x), x)
        learner.step(extra_term=extra)
",
        NOTHING,
    );
}

#[test]
fn steps_of_a_lightning_module_are_known_by_name() {
    judge(
        "
from base import BaseTrainer
class Trainer(BaseTrainer):
    def validation_step(self, batch, batch_idx):
        out = self.model(batch)
        self.log('val', out.sum().item())
",
        NOTHING,
    );
}

#[test]
fn a_checkpoint_is_freed_with_the_function_that_loads_it() {
    judge(
        "
def load(networks, path):
    states = torch.load(path)
    for name in networks:
        networks[name].cuda().load_state_dict(states[name])
",
        NOTHING,
    );
}

#[test]
fn sampled_indices_have_no_graph() {
    judge(
        "
def write(model, start):
    model.eval()
    words = []
    text = start
    for place in range(100):
        chances = F.softmax(model(text), dim=-1)
        word = torch.multinomial(chances, 1)
        text = torch.cat([text, word])
        words.append(word)
    return len(words)
",
        &["6 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn a_loss_reduced_by_a_function_is_a_number() {
    judge(
        "
for x, y in loader:
    loss = torch.mean((model(x) - y) ** 2)
    loss.backward()
    history.append(loss)
",
        &["4 low loss-kept-in-list"],
    );
}

#[test]
fn what_a_loss_function_returns_besides_the_loss_may_be_numbers() {
    judge(
        "
model.eval()
scores = []
for x, y in val_loader:
    loss, score = criterion(model(x), y)
    scores.append(score)
",
        &["4 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn a_list_of_states_that_the_model_reads_back_is_needed_for_the_last_one() {
    judge(
        "
def unroll(model, inner, xs, ys):
    states = [None]
    for epoch in range(4):
        for x, y in zip(xs, ys):
            loss = F.mse_loss(inner(x), y)
            loss.backward()
            weights, state = model(loss, states[-1])
            states.append(state)
    return weights
",
        NOTHING,
    );
}

#[test]
fn a_sum_over_a_list_written_there_has_few_terms() {
    judge(
        "
def both(batch):
    total = 0
    for view in [batch, batch.flip(1)]:
        for turn in range(3):
            loss = F.mse_loss(model(view), view)
            loss.backward()
        total = total + loss
    return total
",
        NOTHING,
    );
}

#[test]
fn a_checkpoint_costs_memory_where_a_gpu_is_used() {
    // The `else` of `if use_cuda` runs on machines without a GPU.
    judge(
        "
model = nn.Linear(8, 8).to('cuda' if use_cuda else 'cpu')
if use_cuda:
    state = torch.load('x.pt', map_location='cuda:1')
else:
    state = torch.load('x.pt')
model.load_state_dict(state)
",
        NOTHING,
    );
    // A name that is bound again is another model, which is moved later.
    judge(
        "
def main():
    net = nn.Linear(8, 8).cuda()
    run_training(net)
    net = nn.Linear(8, 8)
    net.load_state_dict(torch.load('x.pt'))
    net.cuda()
",
        NOTHING,
    );
    judge(
        "
if large:
    net = nn.Linear(64, 64)
    net = net.cuda()
else:
    net = nn.Linear(8, 8)
    net.load_state_dict(torch.load('x.pt'))
    net = net.cuda()
",
        NOTHING,
    );
    // The first checkpoint is freed before the model is moved.
    judge(
        "
net = nn.Linear(8, 8)
state = torch.load('a.pt')
net.load_state_dict(state)
state = None
net.cuda()
",
        NOTHING,
    );
}

#[test]
fn a_checkpoint_is_followed_to_where_it_is_loaded() {
    // By another method, or by a function.
    judge(
        "
net = Net().cuda()
net.load_weights_of_teacher(torch.load('x.pt'))
",
        &["2 low load-without-map-location"],
    );
    judge(
        "
def start(path):
    net = nn.Linear(8, 8).cuda()
    weights = torch.load(path)
    load_weights(net, weights)
    return net
",
        &["3 low load-without-map-location"],
    );
    // Under another name, while another function works.
    judge(
        "
def main():
    model = nn.Linear(8, 8).cuda()
    saved = torch.load('x.pt')
    weights = saved['weights']
    model.load_state_dict(weights)
    train(model)
",
        &["3 medium load-without-map-location"],
    );
    // Through a function, while one with another name works.
    judge(
        "
def main():
    model = nn.Linear(8, 8)
    saved = torch.load('x.pt')
    model.load_state_dict(without_prefix(saved))
    model.cuda()
    with torch.no_grad():
        write_features(model)

def write_features(model):
    for x in loader:
        write(model(x))

def without_prefix(state):
    return {name[4:]: state[name] for name in state}
",
        &["3 medium load-without-map-location"],
    );
    // Only to be saved again.
    judge(
        "
def stop(model, path):
    model.cuda()
    best = torch.load(path)
    torch.save({'state_dict': best['state_dict']}, 'final.pt')
",
        &["3 low load-without-map-location"],
    );
}

#[test]
fn generation_carries_graphs_although_the_file_also_trains() {
    let trains = "
def train():
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
";
    judge(
        &format!(
            "
def evaluate(decoder, length):
    hidden = None
    text = ''
    for place in range(length):
        out, hidden = decoder(x, hidden)
        text += letter(out.argmax().item())
    print(text)
{trains}"
        ),
        &["5 high hidden-state-not-detached", "5 medium evaluation-with-gradients"],
    );
    // `volatile=True` has had no effect since PyTorch 0.4.
    judge(
        "
def sample(net, xs):
    state = Variable(torch.zeros(8), volatile=True)
    for x in range(100):
        out, state = net(xs[x], state)
    print(out.argmax())
",
        &["4 high hidden-state-not-detached"],
    );
    // Who calls `decode` of a module may train what it returns.
    judge(
        &format!(
            "
class Writer(nn.Module):
    def sample(self, x, state):
        for place in range(100):
            x, state = self.decoder(x, state)
        return x
{trains}"
        ),
        NOTHING,
    );
}

#[test]
fn scripts_that_only_infer_need_no_gradients() {
    judge(
        "
def main():
    net = nn.Linear(8, 8).cuda()
    for name in names:
        image = net(read(name)).detach().cpu().numpy()
        write(name, image)
",
        &["4 medium evaluation-with-gradients"],
    );
    // A demonstration of a module.
    judge(
        "
net = nn.Linear(8, 8).cuda()
for size in sizes:
    out = net(torch.randn(size))
    print(out.shape)
",
        NOTHING,
    );
    // One of several loaders, and one of several models.
    judge(
        "
def accuracy(nets):
    right = 0
    for place in range(4):
        net = nets[place]
        for x, y in test_loaders[place]:
            right += (net(x).argmax(1) == y).sum().item()
    print(right)
",
        &["6 medium evaluation-with-gradients"],
    );
    // The mode is set around the function that runs the model.
    judge(
        "
def score(images):
    inception_model.eval()
    def predict(x):
        return inception_model(x).detach().cpu().numpy()
    for batch in loader:
        print(predict(batch))
",
        &["4 medium eval-mistaken-for-no-grad"],
    );
    // Whoever calls an object decides about gradients.
    judge(
        "
class Both:
    def __init__(self, one, other):
        self.one_net, self.other_net = one, other
        self.one_net.eval()
    def __call__(self, x):
        print(self.one_net(x).argmax())
",
        NOTHING,
    );
}

#[test]
fn an_update_in_a_function_is_a_step_of_its_loop() {
    let update = "
def update(model, optimizer, batch):
    loss = model(batch).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
";
    judge(
        &format!(
            "
for turn in range(1000):
    update(model, optimizer, play())
    torch.cuda.empty_cache()
{update}"
        ),
        &["3 low empty-cache-in-loop"],
    );
    judge(
        &format!(
            "
for turn in range(1000):
    optimizer = torch.optim.Adam(model.parameters())
    update(model, optimizer, play())
{update}"
        ),
        &["2 low optimizer-in-loop"],
    );
    // After an error, the next try needs what is released.
    judge(
        &format!(
            "
while True:
    try:
        update(model, optimizer, play())
    except torch.OutOfMemoryError:
        failed = True
    torch.cuda.empty_cache()
{update}"
        ),
        NOTHING,
    );
    judge(
        &format!(
            "
for turn in range(1000):
    update(model, optimizer, play())
torch.cuda.empty_cache()
{update}"
        ),
        NOTHING,
    );
}

#[test]
fn gradients_may_be_turned_off_by_keyword() {
    judge(
        "
def evaluate(model, loader):
    torch.set_grad_enabled(mode=False)
    model.eval()
    results = []
    for x, y in loader:
        results.append(model(x))
    return results
",
        NOTHING,
    );
}

#[test]
fn outputs_of_a_frozen_model_may_have_no_graph() {
    for freeze in [
        "for p in net.parameters():\n    p.requires_grad = False",
        "for name, p in net.named_parameters():\n    p.requires_grad_(False)",
        "net.requires_grad_(False)",
        "net = Net().requires_grad_(False)",
        "freeze(net)",
        "set_requires_grad(net, False)",
    ] {
        judge(&format!("{freeze}\nnet.eval()\nfor x in loader:\n    features.append(net(x))\n"), NOTHING);
    }
    // Another model is frozen.
    judge(
        "
teacher.requires_grad_(False)
net.eval()
for x in loader:
    features.append(net(x))
",
        &["4 high outputs-kept-with-graph"],
    );
}

#[test]
fn a_model_of_text_may_return_text() {
    judge(
        "
def test_exported(path, inputs):
    module = torch.jit.load(path)
    context = []
    for text in inputs:
        context.append(text)
        context.append(module('\\n'.join(context)))
",
        NOTHING,
    );
}

#[test]
fn a_sum_over_parts_of_one_forward_pass_holds_that_pass_once() {
    judge(
        "
def update(network, minibatches):
    total = 0
    logits = network(torch.cat([x for x, y in minibatches]))
    for i, (x, y) in enumerate(minibatches):
        loss = F.cross_entropy(logits[i], y)
        total += loss
        grads = torch.autograd.grad(loss, network.parameters(), retain_graph=True)
    return total.item()
",
        NOTHING,
    );
}

#[test]
fn a_sum_that_starts_again_in_every_step_does_not_grow() {
    judge(
        "
for x, y in loader:
    out = model(x)
    loss, distance = 0, 0
    for i in range(10):
        part = F.nll_loss(out[i], y)
        loss += part
        distance += 2 * (1 - 2 * part)
    print(distance.item())
    loss.backward()
",
        NOTHING,
    );
}

#[test]
fn a_list_of_one_step_holds_the_tensors_of_one_step() {
    judge(
        "
def train(model, dataloaders, epochs, optimizer):
    batches_iterator = zip(*dataloaders)
    for epoch in range(epochs):
        batches = [data for data in next(batches_iterator)]
        x = torch.cat([data[0].cuda() for data in batches])
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
",
        NOTHING,
    );
}

#[test]
fn an_adversary_needs_gradients_in_evaluation() {
    judge(
        "
def evaluate(model, loader, adversary):
    model.eval()
    for x, y in loader:
        clean = model(x).argmax(1)
        changed = model(adversary.perturb(x, y)).argmax(1)
        print((clean == changed).sum().item())
",
        NOTHING,
    );
}

#[test]
fn a_trial_run_is_not_an_evaluation() {
    judge("\ndef count(model, x):\n    model.eval()\n    _ = model(x)\n    return len(x)\n", NOTHING);
}

#[test]
fn an_evaluation_returns_only_numbers() {
    // A list that the output does not reach.
    judge(
        "
def evaluate(policy, env, episodes):
    policy.eval()
    returns = []
    while len(returns) < episodes:
        action = policy(env.obs).argmax().item()
        obs, reward = env.step(action)
        returns.append(reward)
    return returns
",
        &["5 medium eval-mistaken-for-no-grad"],
    );
    judge(
        "
def embed(texts, tokenizer, model):
    model.eval()
    vectors = []
    for text in texts:
        out = model(**tokenizer(text))
        vectors.extend(out.last_hidden_state[:, 0].detach().cpu().numpy())
    return vectors
",
        &["5 medium eval-mistaken-for-no-grad"],
    );
    judge(
        "
def predict(model, image):
    model.eval()
    out = model(image[None].cuda())
    return out.argmax(1).cpu().numpy()
",
        &["3 medium eval-mistaken-for-no-grad"],
    );
    for escapes in [
        "    return wrap(out)",
        "    box = Box()\n    box.put(out)\n    return box",
        "    fill(results, out)\n    return results",
        "    results['out'] = out\n    return results",
        "    self.out = out\n    return results",
        "    parts = [part for part in out]\n    return wrap(parts)",
    ] {
        judge(&format!("def embed(self, net, x):\n    net.eval()\n    out = net(x)\n{escapes}\n"), NOTHING);
    }
}

#[test]
fn an_input_that_requires_gradients_may_be_set_before_the_pass() {
    judge(
        "
def residuals(net, points):
    net.eval()
    found = []
    for p in points:
        p = p.cuda().requires_grad_(True)
        found.append(derivative(net(p), p).detach().cpu())
    return found
",
        NOTHING,
    );
}

#[test]
fn the_mode_of_an_imported_model_is_known_from_its_assignment() {
    judge(
        "
from models import Encoder
def main(image):
    encoder = Encoder(256).eval()
    encoder = encoder.cuda()
    feature = encoder(image)
    print(feature.argmax(1).cpu().numpy())
",
        &["5 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn a_module_can_put_itself_into_evaluation_mode() {
    judge(
        "
class Net(nn.Module):
    def embed_all(self, loader):
        self.eval()
        found = []
        for x in loader:
            found.append(self(x.cuda()))
        return torch.cat(found).detach().cpu()
",
        &["6 high outputs-kept-with-graph", "6 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn a_class_that_is_given_is_no_model() {
    judge(
        "
def evaluate(Model: nn.Module, env, steps):
    model = Model(env).cuda()
    model.eval()
    for _ in range(steps):
        action = model(env.obs).argmax(1).item()
        env.step(action)
",
        &["5 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn a_scaled_loss_is_the_loss() {
    judge(
        "
for epoch in range(100):
    total = 0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        total += loss
",
        &["6 low loss-accumulated-with-graph"],
    );
}

#[test]
fn a_forward_pass_in_a_helper_is_a_part_of_the_evaluation() {
    judge(
        "
def run(model, batch):
    x, y = batch
    out = model(x)
    return out, F.cross_entropy(out, y)
def evaluate(net, loader):
    net.eval()
    total = 0
    for batch in loader:
        out, loss = run(net, batch)
        total += loss.item()
    return total
",
        &["9 medium eval-mistaken-for-no-grad"],
    );
    // Whoever calls it without gradients, or differentiates in it, is right.
    judge(
        "
def run(model, batch):
    x = batch[0].requires_grad_()
    return force(model(x), x).mean()
def evaluate(net, loader):
    net.eval()
    for batch in loader:
        print(run(net, batch).item())
@torch.no_grad()
def predict(net, loader):
    net.eval()
    for batch in loader:
        print(run(net, batch).item())
",
        NOTHING,
    );
}

#[test]
fn a_method_that_updates_once_is_a_step() {
    judge(
        "
class Agent:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.errors = []
    def learn(self, x, y):
        out = self.model(x)
        loss = F.smooth_l1_loss(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.errors.append((out - y).abs().mean())
",
        &["11 high metric-kept-with-graph"],
    );
}

#[test]
fn what_only_an_evaluation_without_gradients_calls_has_none() {
    let program = "import torch\ndef evaluate(model, loader):\n    return outputs(model, loader)\n\
                   def outputs(model, loader):\n    model.eval()\n    found = []\n    \
                   for x in loader:\n        found.append(model(x))\n    return found\n";
    let source = PythonSource::python(program.as_bytes());
    let check =
        |imports: &lint::Imports| lint::check_module(&source, RULES, imports).expect("Python").found.len();
    let mut imports = lint::Imports::default();
    assert_ne!(check(&imports), 0);
    imports.insert_without_gradients("evaluate");
    assert_eq!(check(&imports), 0);
}

#[test]
fn a_function_can_be_wrapped_without_gradients() {
    let program = "
def outputs(model, loader):
    model.eval()
    return [model(x.cuda()) for x in loader]
";
    judge(&format!("{program}predict = torch.inference_mode()(outputs)"), NOTHING);
    judge(
        &format!("{program}predict = torch.no_grad()(outputs)\noutputs(model, loader)"),
        &["3 high outputs-kept-with-graph", "3 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn models_of_an_ensemble_are_models() {
    judge(
        "
def ensemble(members, loader):
    results = []
    for m in members:
        m.eval()
        for x in loader:
            results.append(m(x.cuda()).softmax(1))
    return torch.stack(results).mean(0)
",
        &["6 medium eval-mistaken-for-no-grad", "6 high outputs-kept-with-graph"],
    );
}

#[test]
fn counts_of_a_graph_are_numbers() {
    judge(
        "
for graph, y in loader:
    graph = graph.to('cuda')
    loss = F.mse_loss(model(graph), y)
    loss.backward()
    edges = graph.num_edges()
    sizes.append(graph.num_nodes)
    speeds.append(edges / 2)
",
        NOTHING,
    );
}

#[test]
fn only_lists_insert_at_a_number() {
    judge(
        "
neighbors = Neighbors(100)
for batch in train_loader:
    batch = batch.to('cuda')
    model(batch).mean().backward()
    neighbors.insert(batch.src, batch.dst)
",
        NOTHING,
    );
}

#[test]
fn other_frameworks_are_not_checked() {
    let program = "from mxnet import gluon\n\ndef eval_net(net, loader, criterion):\n    total = 0\n    \
                   for x, y in loader:\n        total += criterion(net(x), y).sum().asscalar()\n\
                   def train(loss):\n    loss.backward()\n";
    assert_eq!(findings(program), NOTHING);
    assert_eq!(findings(&program.replace("mxnet", "tensorflow")), NOTHING);
    assert_ne!(findings(&program.replace("mxnet", "torch")), NOTHING);
}

#[test]
fn a_unit_test_for_nose_is_no_evaluation() {
    judge(
        "
import nose
def test_models(x):
    for name in names():
        model = create(name)
        model.eval()
        y = model(x)
",
        NOTHING,
    );
}

#[test]
fn numbers_among_the_outputs_have_no_graph() {
    judge(
        "
class Net(nn.Module):
    def forward(self, x):
        out, batch = pool(x)
        ratio = out.size(0) / x.size(0)
        return self.fc(x), ratio
model = Net()
def test(loader):
    total, outputs = 0, []
    model.eval()
    for x, y in loader:
        out, ratio = model(x)
        total += ratio
        outputs.append(out)
    return total
test(loader)
",
        &["11 medium eval-mistaken-for-no-grad", "13 high outputs-kept-with-graph"],
    );
}

#[test]
fn running_layers_is_one_forward_pass() {
    judge(
        "
def predict(layers, x):
    for label in range(10):
        h = x[label]
        for layer in layers:
            layer.eval()
            h = layer(h)
        print(h.argmax(1).tolist())
",
        &["6 medium eval-mistaken-for-no-grad"],
    );
}

#[test]
fn a_teacher_with_gradients_is_reported_unless_something_else_decides_about_them() {
    let program = |before: &str, target: &str| {
        format!(
            "
teacher, student = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
{before}
for x, y in loader:
    loss = F.mse_loss(student(x), {target})
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"
        )
    };
    let plain = "optimizer = torch.optim.SGD(student.parameters(), lr=0.1)";
    judge(&program(plain, "teacher(x)"), &["4 medium teacher-with-gradients"]);
    judge(&program(plain, "teacher(x).detach()"), NOTHING);
    judge(
        &program("optimizer = torch.optim.SGD([*student.parameters(), *teacher.parameters()])", "teacher(x)"),
        NOTHING,
    );
    judge(&program("teacher.requires_grad_(False)", "teacher(x)"), NOTHING);
    judge(&program("torch.set_grad_enabled(False)", "teacher(x)"), NOTHING);
}

#[test]
fn what_a_handler_does_besides_is_no_retry() {
    judge(
        "
def train(model, loader, optimizer, criterion, log):
    for x, y in loader:
        try:
            optimizer.zero_grad()
            log(x)
            best = max(1, 2)
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        except RuntimeError as e:
            if 'out of memory' in str(e):
                optimizer.zero_grad()
                log(y)
                best = max(2, 3)
            else:
                raise
",
        NOTHING,
    );
    judge(
        "
def train(step, batch):
    try:
        loss = step(batch)
    except RuntimeError as e:
        if 'out of memory' in str(e):
            loss = step(batch[:4])
",
        &["6 medium retry-inside-except"],
    );
}

#[test]
fn a_hook_that_keeps_what_is_said_about_an_activation_keeps_none() {
    for kept in
        ["tuple(o.shape)", "list(o.size())", "[x.shape for x in i]", "(m, o.shape)", "m", "m.weight", "id(m)"]
    {
        judge(
            &format!(
                "
log = []
def hook(m, i, o):
    log.append({kept})
def main(model, loader, opt):
    model.fc.register_forward_hook(hook)
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
"
            ),
            NOTHING,
        );
    }
}

#[test]
fn a_trunk_that_several_losses_share_needs_its_graph() {
    judge(
        "
def grads_per_task(model, heads, x, ys, crit):
    feat = model(x)
    for head, y in zip(heads, ys):
        model.zero_grad()
        crit(head(feat), y).backward(retain_graph=True)
",
        NOTHING,
    );
    judge(
        "
def grads_per_loss(model, x, y, crit):
    losses = crit(model(x), y)
    for i in range(3):
        losses[i].backward(retain_graph=True)
",
        NOTHING,
    );
}

#[test]
fn what_code_of_another_file_may_train_is_no_evaluation() {
    // An imported function, or one of a base class, is given the loss.
    let head = "from utils import backprop, optimize\nfrom base import BaseTrainer\n";
    for program in [
        "def run(model, loader, opt):\n    for x, y in loader:\n        backprop(opt, F.mse_loss(model(x), y))\nmodel = nn.Linear(4, 2).cuda()\nrun(model, loader, None)",
        "class T(BaseTrainer):\n    def __init__(self):\n        self.model = nn.Linear(4, 2).cuda()\n    def epoch(self, loader):\n        for x, y in loader:\n            self.optimize(F.mse_loss(self.model(x), y))",
        "class T(BaseTrainer):\n    def __init__(self):\n        self.model = nn.Linear(4, 2).cuda()\n    def total(self, batches):\n        loss = 0\n        for x, y in batches:\n            loss = loss + F.mse_loss(self.model(x), y)\n        return loss",
        "def losses(model, batches):\n    found = []\n    for x, y in batches:\n        found.append(F.mse_loss(model(x.cuda()), y))\n    return found\nmodel = nn.Linear(3, 3).cuda()\nopt = torch.optim.Adam(model.parameters())",
        "model = nn.Linear(3, 3).cuda()\nmodel.eval()\nfor x, y in loader:\n    loss = F.mse_loss(model(x.cuda()), y)\n    optimize(None, loss)",
        "def parts(model, views):\n    for view in views:\n        yield model(view.cuda())\nmodel = nn.Linear(3, 3).cuda()",
    ] {
        judge(&format!("{head}{program}"), NOTHING);
    }
}

#[test]
fn a_fix_does_not_turn_gradients_off_for_what_is_given_the_model() {
    let program = "import torch\nfrom attacks import pgd\ndef evaluate(model, loader):\n    model.eval()\n    for x, y in loader:\n        n = model(pgd(model, x, y)).argmax(1)\n";
    let fixes = |program: &str| {
        let source = PythonSource::python(program.as_bytes());
        let found = check(&source, RULES).expect("Python");
        (found.len(), found.iter().filter(|one| one.fix.is_some()).count())
    };
    assert_eq!(fixes(program), (1, 0));
    assert_eq!(fixes(&program.replace("pgd(model, x, y)", "x")), (1, 1));
}

#[test]
fn a_loss_is_known_by_its_backward() {
    judge(
        "
scaler = torch.amp.GradScaler()
total = 0
for x, y in loader:
    out, loss = model(x, y)
    scaler.scale(loss).backward()
    total += loss
    history.append(loss)
",
        &["6 low loss-accumulated-with-graph", "7 low loss-kept-in-list"],
    );
    judge(
        "
errors = 0
for x in loader:
    recon, mu = model(x)
    error, divergence = vae_loss(recon, mu)
    loss = error + 0.1 * divergence
    loss.backward()
    errors += error
",
        &["7 low loss-accumulated-with-graph"],
    );
}

#[test]
fn copies_of_models_are_known_in_whatever_holds_them() {
    let kept = |value: &str, epochs: &str| {
        format!(
            "model = nn.Linear(9, 9).cuda()\nkept = []\nfor epoch in {epochs}:\n    train(model)\n    kept.append({value})"
        )
    };
    for value in [
        "copy.deepcopy(model)",
        "copy.deepcopy(model).state_dict()",
        "(epoch, copy.deepcopy(model.state_dict()))",
        "{'epoch': epoch, 'model': copy.deepcopy(model.state_dict())}",
        "{name: value.clone() for name, value in model.state_dict().items()}",
        "[p.detach().clone() for p in model.parameters()]",
    ] {
        judge(&kept(value, "range(100)"), &["5 high state-dicts-kept"]);
        judge(&kept(value, "range(3)"), &["5 medium state-dicts-kept"]);
    }
    for value in [
        "copy.deepcopy(model).cpu()",
        "copy.deepcopy(model).cpu().state_dict()",
        "{name: value.cpu().clone() for name, value in model.state_dict().items()}",
    ] {
        judge(&kept(value, "range(100)"), NOTHING);
    }
}

#[test]
fn a_mask_makes_a_copy_and_a_number_a_view() {
    let slices = |index: &str| {
        format!(
            "net = nn.Linear(4, 1).cuda()\nwith torch.no_grad():\n    for x, y in loader:\n        out = net(x.cuda())\n        {index}\n        kept.append(out[i])"
        )
    };
    for index in ["i = y.cuda() > 0", "i = y.bool()", "i = y.nonzero().squeeze()"] {
        judge(&slices(index), NOTHING);
    }
    judge(&slices("i = int(y.argmax())"), &["6 medium slice-keeps-whole"]);
}

#[test]
fn gradients_of_one_step_and_losses_of_one_graph_are_in_order() {
    judge(
        "
for x, ys in loader:
    grads = []
    out = model(x)
    for y in ys:
        F.mse_loss(out, y).backward(retain_graph=True)
        grads.append([p.grad.clone() for p in model.parameters()])
    optimizer.step()
",
        NOTHING,
    );
    judge(
        "
for x, y in loader:
    out = model(x)
    first, second = out.mean(), out.pow(2).mean()
    for loss in (first, second):
        loss.backward(retain_graph=True)
    optimizer.step()
",
        NOTHING,
    );
}

#[test]
fn a_hook_that_is_removed_before_the_steps_keeps_nothing() {
    let hooked = |after: &str| {
        format!(
            "acts = []\ndef hook(m, i, o):\n    acts.append(o.detach())\nhandle = model.layer.register_forward_hook(hook)\nmodel(example)\n{after}\nfor x, y in loader:\n    F.mse_loss(model(x), y).backward()\n    optimizer.step()\n    optimizer.zero_grad()"
        )
    };
    judge(&hooked("handle.remove()"), NOTHING);
    judge(&hooked("pass"), &["3 high hook-keeps-activations"]);
    judge(
        "def attach(model):\n    acts = []\n    def hook(m, i, o):\n        acts.append(o)\n    handle = model.layer.register_forward_hook(hook)\n    return acts, handle",
        NOTHING,
    );
}

#[test]
fn what_an_unknown_class_does_with_a_loss_is_unknown() {
    let meters = |made: &str, call: &str| {
        format!(
            "meter = {made}\nfor x, y in loader:\n    loss = F.mse_loss(model(x), y)\n    loss.backward()\n    meter.{call}"
        )
    };
    judge(&meters("CumulativeAverage()", "append(loss)"), NOTHING);
    judge(&meters("[]", "append(loss, count=3)"), NOTHING);
    judge(&meters("ReplayBuffer()", "append(loss)"), &["5 low loss-kept-in-list"]);
    judge(&meters("[]", "append(loss)"), &["5 low loss-kept-in-list"]);
}

#[test]
fn functions_named_for_what_they_do_with_models_are_no_models() {
    judge(
        "def validate(configs):\n    for config in configs:\n        print(make_net(config))\n        flatten_model(config)\nx = 'cuda'",
        NOTHING,
    );
}

#[test]
fn only_models_with_a_vocabulary_have_large_logits() {
    let trainer = |model: &str| {
        format!(
            "from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer\nmodel = {model}.from_pretrained('x')\nTrainer(model=model, args=args, compute_metrics=accuracy)"
        )
    };
    judge(&trainer("AutoModelForSequenceClassification"), NOTHING);
    judge(&trainer("AutoModelForCausalLM"), &["3 medium trainer-gathers-logits"]);
}
