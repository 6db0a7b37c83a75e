"""The dictionary: every number that is shown, its unit, its meaning, where it comes from, how to
see it by hand.

Help and documentation are read from here, so that a number has one explanation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One number or word.

    `name` is its key in JSON where it has one, `unit` is empty for words and plain counts, `check`
    is a command or a look by which a person sees the same, empty where there is none.
    """

    name: str
    unit: str
    meaning: str
    source: str
    check: str = ""


METRICS = (
    Metric(
        "rank",
        "",
        "the global rank",
        "RANK of the launcher, or the arguments of init_process_group",
        "tr '\\0' '\\n' </proc/PID/environ | grep ^RANK=",
    ),
    Metric(
        "state",
        "",
        "the state of the rank, in one word",
        "all other facts, by the rules under `states`",
    ),
    Metric(
        "host",
        "",
        "the host that the rank runs on",
        "gethostname in the rank's process",
        "hostname",
    ),
    Metric(
        "iteration",
        "",
        "how many iterations the rank has finished; in JSON, iteration_source says what an"
        " iteration is",
        "ddtop.step(), else optimizer steps (torch's global hook), else DataLoader batches, else"
        " the rhythm of MPI's collectives",
        "print it in the training loop",
    ),
    Metric(
        "coordinates",
        "",
        "the rank's position in the grid of parallel groups: pp1 dp0 tp3",
        "DeviceMesh, the descriptions of torch's groups, Megatron's and DeepSpeed's globals",
        "mesh.get_coordinate() in the program",
    ),
    Metric(
        "step_ms",
        "ms",
        "time from the end of one iteration to the end of the next; - while none ends",
        "the monotonic clock of the rank's process, read where iterations are counted",
        "time the training loop",
    ),
    Metric(
        "now",
        "",
        "what the rank is doing: its collective or call, otherwise the line of its own code, or"
        " how it ended",
        "torch's flight recorder, the wrapped calls, the program's innermost frame in the main"
        " thread",
        "py-spy dump --pid PID",
    ),
    Metric(
        "now_age_s",
        "s",
        "how long it has been doing what NOW shows",
        "the time of the same fact, on the clock of rank 0's host",
    ),
    Metric(
        "wait_ratio",
        "share of the last 10 s",
        "how much of the time a collective was open and its thread did nothing else; the straggler"
        " is the rank that hardly waits",
        "the agent's samples, 4 a second",
        "py-spy dump --pid PID, a few times",
    ),
    Metric(
        "activity_ratios",
        "share of the last 10 s",
        "what the rank's thread was doing, one letter per activity; time that counts in COMM is"
        " communication here too, even in backward",
        "the agent's samples of the main thread's frames, 4 a second",
        "py-spy top --pid PID",
    ),
    Metric(
        "lane",
        "one second a cell",
        "what its thread did in each of the last seconds: the height is the share at work, the sign"
        " what the rest went to; asleep: in no known wait, and next to no CPU used",
        "the growth of the agent's samples between two reports, and /proc/PID/stat",
        "py-spy dump --pid PID, a few times",
    ),
    Metric(
        "spots",
        "share of the last 30 s",
        "the functions of the program's own code in which the rank was found most often",
        "the same samples: the program's innermost frame, with its most frequent line",
        "py-spy record --pid PID",
    ),
    Metric(
        "late.cost_ms",
        "ms per step",
        "how long the others wait for this rank in a step, median over the measured steps",
        "the times at which all ranks enqueued their collectives, from torch's flight recorder",
        "log time.time() before a barrier on all ranks",
    ),
    Metric(
        "pressure.delay_ratio",
        "share of the last 20 s",
        "how much of the time the main thread was ready to run but had no CPU",
        "the second number of /proc/PID/task/PID/schedstat",
        "cat /proc/PID/schedstat, twice",
    ),
    Metric(
        "loader",
        "batches",
        "batches ready in the DataLoader's queue, and how many fit; 0 means that the rank waits"
        " for data",
        "the DataLoader iterator's own counters",
        "watch the CPU of its worker processes",
    ),
    Metric(
        "loader_wait_ratio",
        "share of the last 10 s",
        "how much of the time the rank waited for its next batch",
        "the clock around the iterator's next()",
    ),
    Metric(
        "cpu_ratio",
        "% of one core, c: cores",
        "CPU that the rank and its children use; ddtop's own share is subtracted",
        "utime and stime of /proc/PID/stat, over two seconds",
        "top -p PID",
    ),
    Metric(
        "rss_bytes",
        "bytes, K M G are powers of 1024",
        "main memory that the rank's process holds",
        "/proc/PID/statm",
        "grep VmRSS /proc/PID/status",
    ),
    Metric(
        "gpu",
        "% of the last second",
        "how much of the time the rank's GPU ran a kernel; wait: busy at little power, NCCL's"
        " kernel waits for another rank; lost: it no longer answers",
        "NVML or amdsmi, read by the relay; torch says which GPU belongs to the rank, otherwise"
        " the driver's list, otherwise CUDA_VISIBLE_DEVICES",
        "nvidia-smi, amd-smi monitor",
    ),
    Metric(
        "gpu_memory",
        "bytes, K M G are powers of 1024",
        "memory in use on the rank's GPU, by any process",
        "NVML or amdsmi, read by the relay",
        "nvidia-smi --query-gpu=memory.used --format=csv; amd-smi monitor --vram-usage",
    ),
    Metric(
        "gpu_power",
        "watts",
        "power that the rank's GPU draws; a full bar is its power limit",
        "NVML, read by the relay",
        "nvidia-smi --query-gpu=power.draw,power.limit --format=csv",
    ),
    Metric(
        "nccl",
        "",
        "NCCL in a word: ok, wait (a collective is open for a second), init (a communicator is"
        " being built), err (its watchdog says so)",
        "torch's flight recorder and get_error of the backend",
        "py-spy dump --native --pid PID",
    ),
    Metric("pid", "", "process id, as the rank itself sees it", "getpid", "ps -p PID"),
    Metric(
        "report_age_s",
        "s",
        "how long ago the rank's agent last reported; values older than 3.5 s are shown as old",
        "the arrival of its records at the relay",
    ),
    Metric(
        "iterations_per_s",
        "1/s",
        "iterations of the job, median over its ranks",
        "the iteration counts of two reports",
    ),
    Metric(
        "collective.age_s",
        "s",
        "how long the open collective has been open",
        "torch's flight recorder",
    ),
    Metric(
        "healthy_wait_max_ms",
        "ms",
        "the longest wait for a collective that completed, of the last 100 waits of half a second"
        " or more",
        "the agent's samples",
    ),
    Metric(
        "usual_wait_ms",
        "ms",
        "the second longest wait for a collective that completed, of the last 100 waits of half a"
        " second or more: a wait that has happened twice is usual",
        "the agent's samples",
    ),
    Metric(
        "progress",
        "",
        "how far the training is: step, epoch, phase, speed, loss, time left",
        "values that the program's framework has already computed (HF Trainer, Lightning, tqdm,"
        " ...), or ddtop.step(), ddtop.phase() and ddtop.progress()",
        "the program's own log or progress bar",
    ),
    Metric(
        "agent_cpu_ratio",
        "% of one core",
        "what ddtop's agent costs in the rank's process",
        "the CPU clock of the agent's thread",
        "top -H -p PID",
    ),
    Metric(
        "drops",
        "records",
        "records that the agent dropped because the relay did not take them",
        "its queue",
    ),
)


@dataclass(frozen=True)
class Family:
    """One family of series of `ddtop exporter`, by Prometheus' rules: base units, which are the end
    of the name.

    `kind`: gauge, counter or info. `labels`: besides `job`. `most`: how many series of it one job
    may have.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    most: int = 1
    of_job: bool = True


SERIES_MAX = 60
"""Series of one job, whatever its size: a fleet of 200 jobs stays below what one small Prometheus
takes without thinking."""
FINDINGS_MAX, CULPRITS_MAX, STATES = 6, 8, 14

FAMILIES = (
    Family("ddtop_build_info", "info", ("version", "python"), "The exporter itself.", of_job=False),
    Family("ddtop_jobs", "gauge", (), "Jobs that the exporter follows.", of_job=False),
    Family("ddtop_up", "gauge", (), "1: the job's relay reports. 0: the relay is silent."),
    Family("ddtop_job_live", "gauge", (), "1: the job runs. 0: it ended within two minutes."),
    Family("ddtop_look_age_seconds", "gauge", (), "How old the other numbers of the job are."),
    Family(
        "ddtop_job_info",
        "info",
        (
            "run",
            "script",
            "user",
            "host",
            "backend",
            "world_size",
            "launcher",
            "slurm_job_id",
        ),
        "Facts about the job. host: where its relay runs, the host of rank 0.",
    ),
    Family("ddtop_world_size", "gauge", (), "Ranks that the job should have."),
    Family("ddtop_job_start_time_seconds", "gauge", (), "When the job began, Unix time."),
    Family("ddtop_restarts_total", "counter", (), "How often the launcher restarted the ranks."),
    Family("ddtop_ranks", "gauge", ("state",), "Ranks in each state.", STATES),
    Family("ddtop_hosts", "gauge", ("state",), "Hosts that report, and hosts that are lost.", 2),
    Family("ddtop_findings", "gauge", (), "Active findings that are not muted."),
    Family(
        "ddtop_finding",
        "gauge",
        ("kind", "severity"),
        "Active findings of this kind that are not muted. Only the worst kinds: ddtop_findings"
        " counts all.",
        FINDINGS_MAX,
    ),
    Family("ddtop_muted_findings", "gauge", (), "Active findings that are muted."),
    Family("ddtop_culprits", "gauge", (), "Ranks that critical findings and warnings name."),
    Family(
        "ddtop_culprit",
        "gauge",
        ("kind", "rank", "host"),
        "1 while a finding names this rank. Only the first ranks: ddtop_culprits counts all.",
        CULPRITS_MAX,
    ),
    Family("ddtop_steps_total", "counter", (), "Iterations that the job finished, median rank."),
    Family(
        "ddtop_step_seconds",
        "gauge",
        ("over_ranks",),
        "Time of the last iteration: min, median and max over the ranks.",
        3,
    ),
    Family(
        "ddtop_no_progress_seconds",
        "gauge",
        (),
        "Time since any rank last made progress; 0 while one does.",
    ),
    Family(
        "ddtop_comm_wait_ratio",
        "gauge",
        ("over_ranks",),
        "Share of the last 10 s in which a collective was open: min and mean over the ranks. The"
        " straggler has the minimum.",
        2,
    ),
    Family(
        "ddtop_loader_wait_ratio",
        "gauge",
        ("over_ranks",),
        "Share of the last 10 s spent waiting for a batch: mean and max over the ranks.",
        2,
    ),
    Family(
        "ddtop_straggler_lost_seconds_total",
        "counter",
        (),
        "Time that the other ranks have waited for stragglers since the exporter began to follow"
        " the job.",
    ),
    Family(
        "ddtop_goodput_ratio",
        "gauge",
        (),
        "Time in iterations of the usual length over wall time, since the exporter began to"
        " follow the job.",
    ),
    Family("ddtop_gpus", "gauge", (), "GPUs of the job's ranks."),
    Family(
        "ddtop_gpu_utilization_ratio",
        "gauge",
        (),
        "Share of the last second in which a kernel ran, mean over the GPUs.",
    ),
    Family("ddtop_gpu_memory_used_bytes", "gauge", (), "Memory in use on the job's GPUs, sum."),
    Family("ddtop_gpu_memory_bytes", "gauge", (), "Memory of the job's GPUs, sum."),
    Family("ddtop_gpu_power_watts", "gauge", (), "Power of the job's GPUs, sum."),
    Family("ddtop_agent_cpu_ratio", "gauge", (), "Cores that ddtop's agent uses in a rank, mean."),
    Family("ddtop_relay_cpu_seconds_total", "counter", (), "CPU time of the job's relays, sum."),
    Family("ddtop_relay_resident_memory_bytes", "gauge", (), "Memory of the job's relays, sum."),
    Family("ddtop_dropped_records_total", "counter", (), "Records that agents and relays dropped."),
)
"""All series of `ddtop exporter`."""
