"""Build what the guest boots from: kernel, initial RAM disk, root file system.

Everything comes from Debian packages. The root holds Python and iproute2, the kernel only the
modules that the tests load; the guest's program (`agent`) is not in the image but handed over at
boot, so that an image stays valid until this file changes. Images are cached per kernel and recipe.
`python -m tests.interop.lab.image` builds one and prints where it is; KERNEL chooses the series,
one of 6.1, 6.12 and 7.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Series:
    """A series of kernels: the suite that has it, and the release that results are compared for."""

    suite: str
    release: str  # as `uname -r` says
    security: bool = False  # it is in the suite's security updates


SERIES = {
    "6.1": Series("bookworm", "6.1.0-56-amd64", security=True),  # 6.1.192
    "6.12": Series("trixie", "6.12.107+deb13-amd64"),
    "7": Series("trixie-backports", "7.2.12+deb13-amd64"),
}
USERLAND_SUITE = "bookworm"
USERLAND_PACKAGES = ("python3", "iproute2", "kmod", "mount", "tcpdump")
ROOT_MEBIBYTES = 700
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# What a kernel without built-in drivers needs to find its root, its network and its program.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "virtio_rng", "virtio_net", "ext4", "qemu_fw_cfg")
# `ss -K` asks tcp_diag; the RDMA modules are for RDS over soft RoCE.
TEST_MODULES = ("rds", "rds_tcp", "rds_rdma", "rdma_rxe", "tcp_diag", "veth", "af_packet")

# Runs as process 1 of the initial RAM disk; the root is a throw-away snapshot, hence writable.
INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module; done
until [ -b /dev/vda ]; do sleep 0.05; done
mount -t ext4 /dev/vda /root || poweroff -f
cat /sys/firmware/qemu_fw_cfg/by_name/opt/agent.py/raw > /root/agent.py
for tree in proc sys dev; do mount --move /$tree /root/$tree; done
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
exec switch_root /root /usr/bin/python3 /agent.py
"""


@dataclass(frozen=True, slots=True)
class Image:
    """Three files that QEMU boots from."""

    kernel: Path
    initrd: Path
    root: Path


def cache_directory() -> Path:
    """Return where images are kept: TEST_LAB, else the user's cache, else /var/tmp."""
    if chosen := os.environ.get("TEST_LAB"):
        return Path(chosen)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "urds-lab"
    return Path(f"/var/tmp/urds-lab-{os.getuid()}")


def chosen_series() -> str:
    """Return the series that the environment variable KERNEL names, 6.1 if it names none.

    Raises ValueError for another than the keys of SERIES.
    """
    chosen = os.environ.get("KERNEL") or "6.1"
    if chosen not in SERIES:
        raise ValueError(f"KERNEL={chosen}: choose one of {', '.join(SERIES)}")
    return chosen


def ensure_image(kernel_series: str) -> Image:
    """Return a cached image of `kernel_series`, a key of SERIES; build it if needed.

    Building takes about a minute and needs root. Raises CalledProcessError with the output of the
    tool that failed, LookupError where apt's sources lead to no kernel.
    """
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"linux-{kernel_series}-{recipe}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            for outdated in cache.glob(f"linux-{kernel_series}-*"):
                shutil.rmtree(outdated)
            with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as work:
                _build(kernel_series, Path(work)).rename(target)
    return Image(target / "vmlinuz", target / "initrd.img", target / "root.img")


def _build(kernel_series: str, work: Path) -> Path:
    """Build in `work`; return the directory of the three files."""
    result = work / "result"
    result.mkdir()
    tree = _unpack_kernel(SERIES[kernel_series], work)
    release = next((tree / "lib/modules").iterdir()).name
    boot_file = tree / "boot" / f"vmlinuz-{release}"
    if not boot_file.exists():  # Debian's 7.x keeps it beside the modules
        boot_file = tree / "lib/modules" / release / "vmlinuz"
    shutil.copy(boot_file, result / "vmlinuz")
    _pack_initrd(tree, release, work, result / "initrd.img")
    _pack_root(tree, release, work, result / "root.img")
    return result


def _unpack_kernel(series: Series, work: Path) -> Path:
    """Download the kernel of `series` and unpack it; return the tree with lib/modules in it.

    A suite that has dropped the wanted release gives its own choice of that series: results are
    kept with the release that they are of. A private state of apt keeps the host's own sources
    and lists as they are.
    """
    state = work / "apt"
    for part in ("lists/partial", "cache/archives/partial", "sources"):
        (state / part).mkdir(parents=True)
    origins = [f"{_mirror('debian')} {series.suite}"]
    if series.security:
        origins.append(f"{_mirror('debian-security')} {series.suite}-security")
    sources = "".join(f"deb [signed-by={KEYRING}] {origin} main\n" for origin in origins)
    (state / "sources/kernel.list").write_text(sources)
    options = [
        *("-o", "Dir::Etc::sourcelist=/dev/null"),
        *("-o", f"Dir::Etc::sourceparts={state}/sources"),
        *("-o", f"Dir::State::lists={state}/lists"),
        *("-o", f"Dir::Cache={state}/cache"),
        *("-o", "APT::Sandbox::User=root"),
    ]
    _run("apt-get", *options, "-q", "update")

    def depends(package: str) -> list[str]:
        listing = _run("apt-cache", *options, "depends", package)
        lines = (line.split() for line in listing.splitlines())
        return [words[1] for words in lines if words[0] == "Depends:" and len(words) == 2]

    image = f"linux-image-{series.release}"
    if image not in _run("apt-cache", *options, "pkgnames", image).splitlines():
        newest = [name for name in depends("linux-image-amd64") if name.startswith("linux-image-")]
        if not newest:
            raise LookupError(f"{series.suite} has no kernel, or cannot be reached")
        image = newest[0]
    # From 7.x on the image package is a shell around these.
    shells = ("linux-base-", "linux-binary-", "linux-modules-")
    parts = [name for name in depends(image) if name.startswith(shells)]
    _run("apt-get", *options, "-q", "download", image, *parts, cwd=work)
    tree = work / "kernel"
    for archive in work.glob("*.deb"):
        _run("dpkg-deb", "-x", str(archive), str(tree))
    if (tree / "usr/lib/modules").is_dir():
        (tree / "lib").mkdir(exist_ok=True)
        (tree / "usr/lib/modules").rename(tree / "lib/modules")
    if compressed := [str(path) for path in (tree / "lib/modules").rglob("*.ko.xz")]:
        _run("unxz", *compressed)
    _run("depmod", "-b", str(tree), next((tree / "lib/modules").iterdir()).name)
    return tree


def _module_files(tree: Path, release: str, names: tuple[str, ...]) -> list[Path]:
    """Return the files of the named modules and of what they need, in loading order."""
    files: dict[Path, None] = {}
    for name in names:
        listing = _run("modprobe", "-d", str(tree), "-S", release, "--show-depends", name)
        for line in listing.splitlines():
            verb, _, path = line.partition(" ")
            if verb == "insmod":  # else: built in
                files[Path(path.strip())] = None
    return list(files)


def _pack_initrd(tree: Path, release: str, work: Path, target: Path) -> None:
    """Write the initial RAM disk: busybox, the modules for booting, INIT."""
    disk = work / "initrd"
    for folder in ("bin", "dev", "modules", "proc", "root", "sys"):
        (disk / folder).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", disk / "bin/busybox")
    for index, path in enumerate(_module_files(tree, release, BOOT_MODULES)):
        shutil.copy(path, disk / "modules" / f"{index:03}-{path.name}")
    (disk / "init").write_text(INIT)
    (disk / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(disk)) for path in sorted(disk.rglob("*")))
    with target.open("wb") as archive:
        command = ["cpio", "--create", "--format=newc", "--quiet"]
        subprocess.run(command, input=names.encode(), stdout=archive, cwd=disk, check=True)


def _pack_root(tree: Path, release: str, work: Path, target: Path) -> None:
    """Write the root file system: a small Debian with Python, and the modules for the tests."""
    root = work / "root"
    _run(
        "mmdebstrap",
        "--variant=essential",
        f"--include={','.join(USERLAND_PACKAGES)}",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "locale", "man")),
        *(USERLAND_SUITE, str(root), _mirror("debian")),
    )
    modules = Path("lib/modules") / release
    for path in _module_files(tree, release, BOOT_MODULES + TEST_MODULES):
        copy = root / path.relative_to(tree)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(tree / modules / name, root / modules / name)
    _run("depmod", "-b", str(root), release)
    _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(target), f"{ROOT_MEBIBYTES}M")


def _mirror(archive: str) -> str:
    """Return the mirror of `archive` that this host's apt uses. Raises LookupError for none."""
    listing = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages")
    for line in listing.splitlines():
        if line.rstrip("/").endswith(f"/{archive}"):
            return line.rstrip("/")
    raise LookupError(f"apt's sources name no mirror of {archive} to build the guest from")


def _run(*command: str, cwd: Path | None = None) -> str:
    """Run `command` and return its output. Raises CalledProcessError with what it printed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        error.add_note(done.stderr[-2000:])
        raise error
    return done.stdout


if __name__ == "__main__":
    print(ensure_image(chosen_series()).kernel.parent)
