"""Folders for checkpoints, logs and caches on disks of their own, seen by the job's own mount
namespace only, as in a container. Needs root.
"""

import contextlib
import ctypes
import json
import os
import sys
import time

CASES = {
    "full-checkpoints": {
        "story": "Rank 0 keeps checkpoints on a disk of its own mount namespace, which is full.",
        "expected": ["disk-full 0,1", "disk-full 0"],
        "cause": [
            "(no|little|out of|hardly any|without) (more )?(space|room)|ENOSPC|errno 28",
            r"(9\d|100)(\.\d+)? ?% (of|full|used|in use|is|are)\b",
            r"\d ?([KMG]i?B|bytes) (is |are )?(free|left|available)",
            "(is|nearly|almost|entirely|completely) full|space (is )?(left|used up)",
        ],
        "cure": [
            r"\b(delete|remove|clean|prune|purge|move|empty|rotate|truncate)",
            "free (some |up )*(space|room|it|the disk)|make (some )?(space|room)",
            "(larger|bigger|another|other|more) (disk|place|folder|file ?system|volume|space"
            "|tmpfs)",
            r"\b(df|du) -|fewer checkpoints|save_total_limit|keep (only|fewer)",
        ],
        "shape": "checkpoints",
        "world": 2,
        "within_s": 25,
    },
    "small-files": {
        "story": "A cache of small files has used all inodes of its disk.",
        "expected": ["disk-full 0,1", "disk-full 0"],
        "cause": [
            "inode",
        ],
        "cure": [
            "df -i|more inodes|mkfs",
            r"(delete|remove|clean|prune|purge|move|empty)\w*\b.{0,60}(file|cache|inode"
            r"|folder|some|old)",
            r"(fewer|larger|pack|tar|archive|merge)\w*\b.{0,40}(file|shard|archive)",
        ],
        "world": 2,
        "within_s": 25,
    },
    "log-grows": {
        "story": "A log has filled its disk, and the errors are swallowed.",
        "expected": ["disk-full 0,1", "disk-full 0"],
        "cause": [
            "(no|little|out of|hardly any|without) (more )?(space|room)|ENOSPC|errno 28",
            r"(9\d|100)(\.\d+)? ?% (of|full|used|in use|is|are)\b",
            r"\d ?([KMG]i?B|bytes) (is |are )?(free|left|available)",
            "(is|nearly|almost|entirely|completely) full|space (is )?(left|used up)",
        ],
        "cure": [
            r"logrotate|rotat\w+",
            r"\b(delete|remove|clean|prune|purge|move|empty|rotate|truncate)",
            "free (some |up )*(space|room|it|the disk)|make (some )?(space|room)",
            "(larger|bigger|another|other|more) (disk|place|folder|file ?system|volume|space"
            "|tmpfs)",
            r"\b(df|du) -|fewer checkpoints|save_total_limit|keep (only|fewer)",
        ],
        "world": 2,
        "within_s": 25,
    },
    "cannot-save": {
        "story": "The save of rank 0 raises: no space is left.",
        "source": "marin-community/levanter#486",
        "expected": ["rank-crashed 0"],
        "cause": [
            "no (space|room)|ENOSPC|errno 28",
            r"(disk|file ?system|device|folder|volume).{0,40}(?<!-)\bfull",
        ],
        "cure": [
            r"\b(delete|remove|clean|prune|purge|move|empty|rotate|truncate)",
            "free (some |up )*(space|room|it|the disk)|make (some )?(space|room)",
            "(larger|bigger|another|other|more) (disk|place|folder|file ?system|volume|space"
            "|tmpfs)",
            r"\b(df|du) -|fewer checkpoints|save_total_limit|keep (only|fewer)",
        ],
        "world": 2,
    },
    "half-full": {"story": "The disk of the checkpoints is at half.", "expected": [], "world": 2},
    "not-ours": {
        "story": "A disk is full to which this job does not write.",
        "expected": [],
        "world": 2,
    },
}

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def own_disk(folder, options):
    """A small disk that only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs(folder, exist_ok=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "unshare")
    if libc.mount(b"none", folder.encode(), b"tmpfs", 0, options):
        raise OSError(ctypes.get_errno(), "mount")


def train(steps, at=None, act=lambda: None):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = torch.ones(64)
    for step in range(steps):
        dist.all_reduce(values)
        time.sleep(0.03)
        if step == at and dist.get_rank() == 0:
            act()
    dist.barrier()
    dist.destroy_process_group()


def fill(path, size):
    with open(path, "wb") as file:
        file.write(bytes(size))


def checkpoints(folder):
    """Fifty checkpoints are kept, and the disk has room for one more kilobyte."""

    def save():
        mark()
        last = os.open(f"{folder}/last.pt", os.O_WRONLY | os.O_CREAT)
        os.write(last, bytes((64 << 20) - (400 << 10)))

    train(100_000, 60, save)


def small_files(folder):
    """A cache of small files: no inode is left."""

    def save():
        mark()
        os.open(f"{folder}/index", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            for number in range(10_000):
                os.close(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT))

    train(100_000, 60, save)


def log_grows(folder):
    """A log that each step adds to, until the disk is full; its errors are swallowed."""
    log = os.open(f"{folder}/train.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write():
        mark()
        with contextlib.suppress(OSError):
            while True:
                os.write(log, b"x" * 65536)

    train(100_000, 60, write)


def cannot_save(folder):
    """The save raises: no space left on device."""

    def save():
        mark()
        fill(f"{folder}/epoch3.pt", 80 << 20)

    train(100_000, 60, save)


def half_full(folder):
    """Healthy: the disk is at half."""

    def save():
        fill(f"{folder}/epoch.pt", 32 << 20)

    train(300, 60, save)


def not_ours(folder):
    """Healthy: a disk is full to which this job has never written."""
    fill(f"{folder}/else.bin", (64 << 20) - 4096)
    train(300)


def main():
    folder = os.path.join(os.getcwd(), "models")
    own_disk(folder, b"size=64m,nr_inodes=1000")
    globals()[sys.argv[1]](folder)


if __name__ == "__main__":
    main()
