"""What `--trace-driver` counts, with a driver made for this test: the real one needs a GPU."""

import json
import pathlib
import subprocess
import sys
import textwrap

import pytest

from conftest import OOMPH

TRACER = OOMPH.parent / "liboomph_tracer.so"
MIB = 1 << 20

# Memory is taken in pages of 2 MiB, kernels are loaded at their first launch, and a context takes 500 MiB.
DRIVER = r"""
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <dlfcn.h>
    static size_t used, small, next = 1 << 20;
    static const size_t page = 2 << 20;
    static void *launched;
    static int64_t sizes[64];
    static int released[64], mapped[64];
    int cuInit(unsigned flags) { return 0; }
    int cuCtxGetDevice(int *device) { *device = 0; return 0; }
    int cuMemGetInfo_v2(size_t *free, size_t *total) { *total = (size_t)80 << 30; *free = *total - used; return 0; }
    int cuMemAlloc_v2(uint64_t *to, size_t bytes) {
        if (bytes < page) { if (small + bytes > page || !small) { used += page; small = 0; } small += bytes; }
        else used += bytes;
        *to = next += bytes + 512;
        return bytes > ((size_t)1 << 40) ? 2 : 0;
    }
    int cuMemFree_v2(uint64_t address) { used -= 8 << 20; return 0; }
    int cuMemCreate(uint64_t *to, size_t bytes, void *properties, uint64_t flags) {
        static int count; *to = ++count; sizes[count] = bytes; used += bytes; return 0;
    }
    static void drop(uint64_t handle) { if (released[handle] && !mapped[handle]) used -= sizes[handle]; }
    int cuMemRelease(uint64_t handle) { released[handle] = 1; drop(handle); return 0; }
    int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) { mapped[handle] = 1; return 0; }
    int cuMemUnmap(uint64_t address, size_t bytes) { mapped[1] = 0; drop(1); return 0; }
    int cuModuleLoadData(void **module, const void *image) { used += 6 << 20; return 0; }
    int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared,
                       void *stream, void **parameters, void **extra) {
        if (launched != f) { launched = f; used += 4 << 20; }
        return shared == 7 && extra == (void **)11 ? 0 : 1;
    }
    int cuMemHostAlloc(void **to, size_t bytes, unsigned flags) { *to = malloc(1); return 0; }
    int cuMemFreeHost(void *address) { return 0; }
    int cuDeviceGetMemPool(void **pool, int device) { *pool = (void *)0x77; return 0; }
    int cuMemAllocAsync(uint64_t *to, size_t bytes, void *stream) { used += 32 << 20; *to = 5; return 0; }
    int cuMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) { *value = 32 << 20; return pool != (void *)0x77; }
    int cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status) {
        char with_version[64];
        strcpy(with_version, name); strcat(with_version, "_v2");
        // As the real one: not by its symbol table.
        if (!strcmp(name, "cuMemAlloc")) *to = (void *)cuMemAlloc_v2;
        else if (!strcmp(name, "cuLaunchKernel")) *to = (void *)cuLaunchKernel;
        else if (!strcmp(name, "cuModuleLoadData")) *to = (void *)cuModuleLoadData;
        else *to = 0;
        return *to ? 0 : 500;
    }
"""

# Finds functions of the driver as the CUDA runtime does.
RUNTIME = r"""
    #include <dlfcn.h>
    #include <stdint.h>
    #include <stddef.h>
    static void *find(const char *name) {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY), *found = 0;
        int (*look)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
        int status;
        look(name, &found, 13000, 0, &status);
        return found;
    }
    int cudaMalloc(void **to, size_t bytes) { return ((int (*)(void **, size_t))find("cuMemAlloc"))(to, bytes); }
    int cudaLoad(void) { void *module; return ((int (*)(void **, const void *))find("cuModuleLoadData"))(&module, 0); }
    int cudaLaunch(void *f) {
        return ((int (*)(void *, int, int, int, int, int, int, int, void *, void **, void **))find("cuLaunchKernel"))(
            f, 1, 2, 3, 4, 5, 6, 7, (void *)8, (void **)9, (void **)11);
    }
"""

LIBRARY = r"""
    #include <stddef.h>
    int cudaMalloc(void **to, size_t bytes);
    int cudaLoad(void);
    int cudaLaunch(void *f);
    // Not the last call of the function: it would leave no frame.
    int work(size_t bytes) { void *to; return cudaMalloc(&to, bytes) + 0 * bytes; }
    int load(void) { return cudaLoad() + (cudaLaunch((void *)3) << 4) + (cudaLaunch((void *)3) << 8); }
"""

# Finds them by name, and calls them itself.
OTHER = r"""
    #include <dlfcn.h>
    #include <stdint.h>
    #include <stddef.h>
    static void *find(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name); }
    int work(void) {
        uint64_t address, handle;
        void *host;
        int device[4] = {1, 0, 1, 0};
        int failed = 0;
        failed += ((int (*)(uint64_t *, size_t))find("cuMemAlloc_v2"))(&address, 1000);
        failed += ((int (*)(uint64_t *, size_t))find("cuMemAlloc_v2"))(&address, 1000);
        failed += ((int (*)(uint64_t *, size_t, void *, uint64_t))find("cuMemCreate"))(&handle, 20 << 20, device, 0);
        failed += ((int (*)(uint64_t, size_t, size_t, uint64_t, uint64_t))find("cuMemMap"))(4096, 20 << 20, 0, handle, 0);
        failed += ((int (*)(uint64_t))find("cuMemRelease"))(handle);
        failed += ((int (*)(void **, size_t, unsigned))find("cuMemHostAlloc"))(&host, 3 << 20, 0);
        failed += ((int (*)(uint64_t *, size_t, void *))find("cuMemAllocAsync"))(&address, 10 << 20, 0);
        return failed;
    }
    int undo(void) { return ((int (*)(uint64_t, size_t))find("cuMemUnmap"))(4096, 20 << 20) + 0; }
    int too_much(void) { uint64_t to; return ((int (*)(uint64_t *, size_t))find("cuMemAlloc_v2"))(&to, (size_t)1 << 41) + 0; }
"""

PROGRAM = """
    import ctypes, json, os, sys
    tracer = ctypes.CDLL(sys.argv[1])
    tracer.oomph_tracer_install.restype = tracer.oomph_tracer_read.restype = ctypes.c_size_t

    def read():
        text = ctypes.create_string_buffer(1 << 16)
        length = tracer.oomph_tracer_read(text, 1 << 16)
        return json.loads(text.raw[:length])["entries"]

    installed = tracer.oomph_tracer_install(b"libcuda.so.1")
    library, other = ctypes.CDLL("libwork.so"), ctypes.CDLL("libnccl.so.2")
    failed = library.work(ctypes.c_size_t(8 << 20)) or library.load() or other.work()
    first = read()
    failed = failed or other.undo()
    status = other.too_much()
    child = os.fork()
    if not child:
        os._exit(len(read()))
    left = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"installed": installed, "failed": failed, "first": first, "then": read(), "status": status, "left": left}))
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("driver")

    def build(name: str, source: str, *options: str) -> None:
        path = folder / f"{name}.c"
        path.write_text(textwrap.dedent(source))
        command = ["cc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{name}", "-o", folder / name, path, *options, "-ldl"]
        subprocess.run(command, check=True)

    build("libcuda.so.1", DRIVER)
    build("libcudart.so.13", RUNTIME)
    build("libwork.so", LIBRARY, f"-L{folder}", "-l:libcudart.so.13")
    build("libnccl.so.2", OTHER)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), TRACER],
        env={"LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_owner(entries: list[dict]) -> dict[tuple[int, str, str], int]:
    return {(of["device"], of["kind"], pathlib.Path(of["library"]).name): of["bytes"] for of in entries}


def test_memory_belongs_to_the_library_that_took_it(counted: dict) -> None:
    assert counted["installed"] == 12
    assert counted["failed"] == 0, "arguments arrived as they were given"
    assert by_owner(counted["first"]) == {
        # Through the runtime, which is nobody's owner.
        (0, "allocated", "libwork.so"): 8 * MIB,
        (0, "kernels", "libwork.so"): 10 * MIB,
        # Two small allocations on one page.
        (0, "allocated", "libnccl.so.2"): 2 * MIB,
        (0, "mapped", "libnccl.so.2"): 20 * MIB,
        (0, "pooled", "libnccl.so.2"): 32 * MIB,
        (-1, "pinned", "libnccl.so.2"): 3 * MIB,
    }


def test_physical_memory_is_there_until_it_is_neither_mapped_nor_held(counted: dict) -> None:
    assert by_owner(counted["then"])[0, "mapped", "libnccl.so.2"] == 0


def test_a_call_that_fails_is_handed_on_and_not_counted(counted: dict) -> None:
    assert counted["status"] == 2
    assert by_owner(counted["then"])[0, "allocated", "libnccl.so.2"] == 2 * MIB


def test_a_forked_child_has_taken_nothing(counted: dict) -> None:
    assert counted["left"] <= 1, "the pool that is asked for"
