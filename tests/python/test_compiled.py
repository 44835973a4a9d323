"""What `torch.compile` lets go of, it lets go of in a recorded program as well."""

PROGRAM = """
    import gc, json, weakref
    import torch, torch._dynamo

    torch._dynamo.config.inline_inbuilt_nn_modules = False  # compiled functions hold the parameters

    def parameter_of_a_dropped_module():
        module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
        compiled = torch.compile(module, backend="eager")
        for _ in range(2):
            with torch.no_grad():
                compiled(torch.randn(8, 64, device="cuda"))
        return weakref.ref(module[0].weight)

    alive = []
    for _ in range(3):
        parameter = parameter_of_a_dropped_module()
        gc.collect()
        alive.append(parameter() is not None)
    print("ALIVE", json.dumps(alive))
"""


def test_parameters_of_a_dropped_compiled_module_are_freed(run):
    recorded = run(PROGRAM)
    assert recorded.done.returncode == 0, recorded.done.stderr
    assert recorded.said("ALIVE") == [False, False, False]
