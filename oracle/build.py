"""Build the emulated GPU, get the allocator of each torch release and build the program that drives it.

    python oracle/build.py                  # all sixteen
    python oracle/build.py 2.3.1 2.13.0     # some

Needs a C and a C++ compiler (C++20 from 2.12 on), Linux on x86-64, and the CUDA 13 headers that
`pip install torch==2.11.0` brings into the active environment.

For each release the wheel is downloaded with `pip download --no-deps`, libc10.so, libc10_cuda.so and the c10 headers
are taken out of it, and the wheel is deleted.  A wheel is 0.5 to 0.9 GB, what stays is 5 MB.  The release that is
installed in the active environment is copied instead.  Everything goes into oracle/build, or into ORACLE_BUILD."""

import argparse
import glob
import importlib.metadata
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile

RELEASES = ("2.0.1 2.1.2 2.2.2 2.3.1 2.4.1 2.5.1 2.6.0 2.7.1 2.8.0 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0").split()
PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")
PYTHONS = ("3.11", "3.12", "3.10")  # any will do: these libraries do not use Python
NEEDED = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so", "torch/include/c10/", "torch/include/torch/headeronly/")

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("ORACLE_BUILD") or os.path.join(HERE, "build")
STUBS = os.path.join(BUILD, "stubs")
# Libraries that c10 asks for by name: the emulated GPU under other names.
ALIASES = {
    "libcudart.so.11.0": "libfakecuda.so",
    "libcudart.so.12": "libfakecuda.so",
    "libcudart.so.13": "libfakecuda.so",
    "libnvidia-ml.so.1": "libcuda.so.1",
}


def minor(release):
    return int(release.split(".")[1])


def folder(release):
    return os.path.join(BUILD, "versions", release)


def harness(release):
    return os.path.join(folder(release), "harness")


def built():
    return [release for release in RELEASES if os.path.exists(harness(release))]


def environment(total, used, conf):
    """What a harness needs around it."""
    env = dict(
        os.environ,
        FAKE_TOTAL=str(total),
        FAKE_USED=str(used),
        LD_LIBRARY_PATH=f"{STUBS}:{BUILD}",
        LD_PRELOAD=os.path.join(BUILD, "libfakecuda.so"),
    )
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        env.pop(name, None)
    if conf:
        env["PYTORCH_CUDA_ALLOC_CONF"] = conf
    return env


def run(what, command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{what} does not compile\n{done.stderr[:3000]}")


def cuda_headers():
    """-I options for the folders of the Python environment that together hold the CUDA 13 headers.

    The runtime's own package comes first (its structs must match the torch wheel); Triton's copy only
    fills in the crt/ headers that the package leaves out."""
    roots = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), *sys.path]
    folders = []
    for pattern in ("nvidia/cu1[3-9]/include", "triton/backends/nvidia/include"):
        for root in roots:
            folders += [f for f in sorted(glob.glob(os.path.join(root, pattern))) if f not in folders]
    for header in ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h"):
        if not any(os.path.exists(os.path.join(f, header)) for f in folders):
            sys.exit(f"no {header} in this Python environment; `pip install torch==2.11.0` brings it")
    return [f"-I{f}" for f in folders]


def build_emulated_gpu():
    compiler = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC"]
    os.makedirs(STUBS, exist_ok=True)
    run(
        "fakecuda.c",
        [
            *compiler,
            "-Wall",
            *cuda_headers(),
            os.path.join(HERE, "fakecuda.c"),
            "-o",
            os.path.join(BUILD, "libfakecuda.so"),
            "-lpthread",
        ],
    )
    run(
        "fakedrv.c",
        [*compiler, "-w", "-Wl,-soname,libcuda.so.1", os.path.join(HERE, "fakedrv.c"), "-o", os.path.join(BUILD, "libcuda.so.1")],
    )
    for name, target in ALIASES.items():
        link = os.path.join(STUBS, name)
        if not os.path.islink(link):
            os.symlink(os.path.join("..", target), link)


def download(release):
    """The path of the release's wheel."""
    wheels = os.path.join(BUILD, "wheels")
    for python in PYTHONS:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            python,
            "--dest",
            wheels,
            f"torch=={release}",
        ]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        done = subprocess.run(command, capture_output=True, text=True)
        found = glob.glob(os.path.join(wheels, f"torch-{release}-*.whl"))
        if done.returncode == 0 and found:
            return found[0]
    sys.exit(f"{release}: pip found no wheel\n{done.stderr.strip()}")


def installed_torch():
    try:
        return importlib.metadata.version("torch").split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def fetch(release):
    """Put the needed files of a release into its folder."""
    target = folder(release)
    if os.path.exists(os.path.join(target, NEEDED[1])):
        return
    if release == installed_torch():
        for part in NEEDED:
            source, copy = os.path.join(sysconfig.get_path("platlib"), part), os.path.join(target, part)
            if part.endswith("/"):
                shutil.copytree(source, copy, dirs_exist_ok=True)
            else:
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                shutil.copy(source, copy)
        return
    wheel = download(release)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target, [name for name in archive.namelist() if name.startswith(NEEDED)])
    os.remove(wheel)


def build_harness(release):
    m = minor(release)
    libraries = os.path.join(folder(release), "torch/lib")
    run(
        f"{release}: harness.cpp",
        [
            os.environ.get("CXX", "c++"),
            "-std=c++20" if m >= 12 else "-std=c++17",
            "-O0",
            "-w",
            f"-DTORCH_MINOR={m}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(m >= 7)}",
            "-I" + os.path.join(folder(release), "torch/include"),
            *cuda_headers(),
            os.path.join(HERE, "harness.cpp"),
            "-o",
            harness(release),
            f"-L{libraries}",
            f"-L{BUILD}",
            "-l:libc10_cuda.so",
            "-l:libc10.so",
            "-l:libfakecuda.so",
            "-Wl,--no-as-needed",
            "-l:libcuda.so.1",
            "-Wl,-rpath,$ORIGIN/torch/lib",
            "-Wl,--allow-shlib-undefined",
        ],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE")
    options = parser.parse_args()
    build_emulated_gpu()
    for release in options.releases:
        fetch(release)
        build_harness(release)
        print(f"{release} built", flush=True)


if __name__ == "__main__":
    main()
