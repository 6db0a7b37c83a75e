"""Ray: actors that form a process group, and wait for other actors and tasks."""

import json
import os
import sys
import time

CASES = {
    "no-cpu-left": {
        "story": (
            "Rank 0 waits for a task that Ray cannot start, because the trainers hold all CPUs."
        ),
        "expected": ["not-in-collective 0"],
        "place": "count_words",
        "launcher": "own",
        "needs": ["ray"],
        "cause": [r"ray\.get|not (been )?(started|scheduled)|pending|no free (cpu|resource)"],
        "cure": [r"num_cpus|resources|free cpu|ray (status|list|summary)|time-?out|pending"],
    },
    "actors-in-circle": {
        "story": (
            "Rank 2 waits for an evaluator, which asks rank 2 for its weights: each waits for the "
            "other."
        ),
        "expected": ["not-in-collective 2"],
        "place": "evaluate",
        "launcher": "own",
        "needs": ["ray"],
        "cause": [r"ray\.get|evaluator|actor"],
        "cure": [r"actor|evaluator|time-?out|each other|circle|cycle|concurren|async"],
    },
    "rollouts-come-late": {
        "story": "Two trainers wait for rollouts of actors, some of which take seconds.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
        "launcher": "own",
        "needs": ["ray"],
    },
}

NOTE = "began.json"


def mark():
    """The driver prints it: what an actor prints comes with a prefix."""
    with open(NOTE + ".new", "w") as file:
        json.dump({"fault_unix_ns": time.time_ns()}, file)
    os.replace(NOTE + ".new", NOTE)


class Member:
    """An actor that is a rank of a group."""

    def join(self, folder, rank, size):
        import torch
        import torch.distributed as dist

        os.chdir(folder)
        torch.set_num_threads(1)
        address = f"file://{folder}/meeting"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
        self.rank, self.dist, self.values = rank, dist, torch.zeros(64)

    def together(self):
        self.dist.all_reduce(self.values)
        time.sleep(0.03)

    def leave(self):
        self.dist.barrier()
        self.dist.destroy_process_group()


class Counter(Member):
    """A trainer that prepares its next shard with a task."""

    def train(self):
        for number in range(100_000):
            self.together()
            if number == 70 and self.rank == 0:
                mark()
                self.count_words(number)

    def count_words(self, number):
        import ray

        task = ray.remote(num_cpus=1)(lambda text: len(text.split()))
        return ray.get(task.remote("shard " * number))


class Evaluator:
    """Scores the weights of a trainer, which it fetches."""

    def score(self, trainer):
        import ray

        return float(sum(ray.get(trainer.weights.remote())))


class Evaluated(Member):
    """A trainer that asks an evaluator."""

    def weights(self):
        return self.values.tolist()

    def train(self, evaluator, own_handle):
        for number in range(100_000):
            self.together()
            if number == 70 and self.rank == 2:
                mark()
                self.evaluate(evaluator, own_handle)

    def evaluate(self, evaluator, own_handle):
        import ray

        return ray.get(evaluator.score.remote(own_handle))


class Player:
    """A rollout of many turns."""

    def play(self, turns):
        total = 0.0
        for turn in range(turns):
            total += sum(turn / (one + 1) for one in range(20_000))
            time.sleep(0.02)
        return total


class Learner(Member):
    """A trainer to whom rank 0 gives what its players have found."""

    def train(self, players):
        import ray

        for number in range(10):
            if self.rank == 0:
                slow = 150 if number % 5 == 4 else 20
                turns = [slow if one == number % 2 else 15 for one in range(len(players))]
                pairs = zip(players, turns, strict=True)
                waiting = [player.play.remote(count) for player, count in pairs]
                while waiting:
                    done, waiting = ray.wait(waiting)
                    self.values += ray.get(done[0]) * 1e-9
            self.dist.broadcast(self.values, src=0)
            for _ in range(10):
                self.together()
        self.leave()


def start_ray(cpus):
    """Ray on this host alone, with all its files in the working folder."""
    import ray

    folder = os.path.abspath("ray")
    # Ray's workers run at nice 15: beside processes that compute they hardly start.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray reads this name
    ray.init(num_cpus=cpus, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    return ray


def members(ray, kind, size):
    """Actors of this class as one group."""
    made = [ray.remote(num_cpus=1)(kind).remote() for _ in range(size)]
    ray.get([one.join.remote(os.getcwd(), rank, size) for rank, one in enumerate(made)])
    return made


def watch(ray, results):
    """Wait for the results, and print once that something has begun."""
    told = False
    while results:
        _, results = ray.wait(results, num_returns=len(results), timeout=0.05)
        if not told and os.path.exists(NOTE):
            with open(NOTE) as file:
                print(file.read(), flush=True)
            told = True


def no_cpu_left():
    ray = start_ray(3)
    watch(ray, [one.train.remote() for one in members(ray, Counter, 3)])


def actors_in_circle():
    ray = start_ray(4)
    evaluator = ray.remote(num_cpus=1)(Evaluator).remote()
    watch(ray, [one.train.remote(evaluator, one) for one in members(ray, Evaluated, 3)])


def rollouts_come_late():
    """Healthy."""
    ray = start_ray(4)
    players = [ray.remote(num_cpus=1)(Player).remote() for _ in range(2)]
    watch(ray, [one.train.remote(players) for one in members(ray, Learner, 2)])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
