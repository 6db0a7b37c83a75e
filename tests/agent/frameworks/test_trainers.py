"""What is read of trainers that own the loop, from doubles with their sources' attributes."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from ddtop.agent.frameworks import (
    composer,
    deepspeed,
    hf_trainer,
    ignite,
    lightning,
    megatron,
    torchtitan,
)
from ddtop.agent.guard import guard
from ddtop.agent.notes import progress_notes
from tests.agent.frameworks.reading import OnDevice, phase_now


@pytest.fixture(autouse=True)
def notes(clean_notes, monkeypatch):
    monkeypatch.setattr(guard, "off", {})
    monkeypatch.setattr(guard, "_failed", {})


class Own:
    """An object with these attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def read(name):
    return progress_notes.sources[name].read()


# -- HF Trainer


BATCH_SIZE = "def get_total_train_batch_size(self, args): return 64"


class HfTrainer:
    """transformers 5.23: trainer.py:1450, 2797, 3355 and trainer_callback.py:40."""

    def __init__(self):
        self.args = SimpleNamespace()
        self.state = SimpleNamespace(
            global_step=1200,
            max_steps=10_000,
            epoch=3.2,
            num_train_epochs=10,
            num_input_tokens_seen=614_400,
            log_history=[
                {"loss": 2.31, "learning_rate": 1e-4, "step": 1190},
                {"eval_loss": 2.5, "step": 1200},
            ],
        )

    def train(self, during):
        during()

    def evaluate(self):
        return phase_now()

    def predict(self):
        return phase_now()

    def _save_checkpoint(self):
        return phase_now()

    # A method of the library is called; one of the program would not be.
    exec(compile(BATCH_SIZE, "site-packages/transformers/trainer.py", "exec"))


@pytest.fixture
def hf():
    cls = type("Trainer", (HfTrainer,), {})
    hf_trainer.wrap(SimpleNamespace(Trainer=cls))
    return cls()


def test_the_state_of_the_hf_trainer_is_the_progress(hf):
    found = []
    hf.train(lambda: found.append(read("hf-trainer")))
    (one,) = found

    assert (one.step, one.total_steps, one.epoch, one.total_epochs) == (1200, 10_000, 3.2, 10.0)
    assert (one.loss, one.lr, one.tokens, one.samples) == (2.31, 1e-4, 614_400, 76_800.0)
    assert one.phase is None


def test_the_hf_trainers_phases_are_its_calls(hf):
    found = []
    hf.train(lambda: found.extend([hf.evaluate(), hf.predict(), hf._save_checkpoint()]))

    assert found == [["validate"], ["test"], ["checkpoint"]]
    assert (phase_now(), read("hf-trainer").phase) == ([], "idle")


def test_a_trainer_that_is_gone_says_nothing(hf):
    hf.train(lambda: None)
    source = progress_notes.sources["hf-trainer"]
    source._object = lambda: None

    assert source.read() is None


def test_an_error_of_the_training_passes_through_the_wrapper(hf):
    def fails():
        raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        hf.train(fails)
    assert (read("hf-trainer").phase, guard.off) == ("idle", {})


# -- Lightning


class LightningTrainer:
    """lightning 2.6: pytorch/trainer/trainer.py:997, 1439, 1559-1740."""

    def __init__(self, stage="train", **more):
        progress = SimpleNamespace(
            current=SimpleNamespace(completed=50), total=SimpleNamespace(completed=650)
        )
        loader = SimpleNamespace(batch_size=16, sampler=SimpleNamespace(num_replicas=2))
        self.state = SimpleNamespace(stage=SimpleNamespace(_value_=stage))
        self.fit_loop = SimpleNamespace(
            max_batches=200,
            epoch_loop=SimpleNamespace(batch_progress=progress),
            _combined_loader=SimpleNamespace(flattened=[loader]),
        )
        self.global_step, self.current_epoch, self.max_epochs = 650, 3, 10
        self.max_steps, self.accumulate_grad_batches = -1, 1
        self.strategy = SimpleNamespace(_optimizers=[SimpleNamespace(param_groups=[{"lr": 0.01}])])
        self._logger_connector = SimpleNamespace(
            _progress_bar_metrics={"train_loss": 0.75}, _logged_metrics={}
        )
        vars(self).update(more)

    def _run(self, model):
        return read("lightning")

    def save_checkpoint(self):
        return phase_now()


@pytest.fixture
def pl():
    cls = type("Trainer", (LightningTrainer,), {})
    lightning.wrap(SimpleNamespace(Trainer=cls))
    return cls


def test_the_counts_of_lightning_are_the_progress(pl):
    found = pl()._run(None)

    assert (found.step, found.total_steps, found.epoch) == (650, 2000, 3.25)
    assert (found.total_epochs, found.phase) == (10.0, "train")
    assert (found.loss, found.lr, found.samples) == (0.75, 0.01, 650 * 16 * 2)


@pytest.mark.parametrize(
    "loader",
    [
        SimpleNamespace(batch_size=None),
        SimpleNamespace(batch_size=16, sampler=SimpleNamespace()),
        [],
    ],
)
def test_lightning_knows_no_samples_where_nothing_says_how_many_a_batch_has(pl, loader):
    trainer = pl()
    trainer.strategy.world_size = 2
    trainer.fit_loop._combined_loader.flattened = [loader]

    assert trainer._run(None).samples is None


def test_one_rank_of_lightning_needs_no_distributed_sampler_to_know_its_samples(pl):
    trainer = pl()
    loader = SimpleNamespace(batch_size=16, sampler=SimpleNamespace())
    trainer.fit_loop._combined_loader.flattened = [loader]

    assert trainer._run(None).samples == 650 * 16


@pytest.mark.parametrize(
    ("stage", "phase"),
    [("sanity_check", "sanity-check"), ("validate", "validate"), ("test", "test"), ("tune", None)],
)
def test_the_stage_of_lightning_is_the_phase(pl, stage, phase):
    assert pl(stage)._run(None).phase == phase


def test_lightning_saves_a_checkpoint(pl):
    assert pl().save_checkpoint() == ["checkpoint"]


def test_a_loss_on_a_gpu_is_not_read(pl):
    connector = SimpleNamespace(
        _progress_bar_metrics={"loss": OnDevice()}, _logged_metrics={"train_loss": OnDevice()}
    )

    assert pl(_logger_connector=connector)._run(None).loss is None


def test_a_loader_of_unknown_length_leaves_the_total_unknown(pl):
    trainer = pl()
    trainer.fit_loop.max_batches = float("inf")
    found = trainer._run(None)

    assert (found.total_steps, found.epoch) == (None, 3.0)


def test_of_lightning_without_an_attribute_the_others_are_read(pl):
    trainer = pl()
    del trainer.global_step
    found = trainer._run(None)

    assert (found.step, found.total_epochs) == (None, 10)


# -- ignite and MONAI


class Engine:
    """ignite 0.5: engine/engine.py:890-1280."""

    def __init__(self, **state):
        known = {"iteration": 25, "epoch": 3, "max_epochs": 5, "epoch_length": 10, "output": 0.5}
        self.state = SimpleNamespace(**known, **state)

    def run(self, during):
        return during()


@pytest.fixture
def engine():
    cls = type("Engine", (Engine,), {})
    ignite.wrap(SimpleNamespace(Engine=cls))
    return cls


def test_the_outer_engine_of_ignite_trains_and_an_inner_one_validates(engine):
    outer, inner = engine(), engine()
    inner.state.iteration = 2
    found = outer.run(lambda: (phase_now(), inner.run(lambda: (phase_now(), read("ignite")))))

    assert (found[0], found[1][0]) == ([], ["validate"])
    reading = found[1][1]
    assert (reading.step, reading.total_steps, reading.epoch) == (25, 50, 2.5)
    assert (reading.total_epochs, reading.loss) == (5.0, 0.5)
    assert (phase_now(), read("ignite").phase) == ([], "idle")


def test_a_workflow_of_monai_is_named_so(engine):
    workflow = type("SupervisedTrainer", (engine,), {"__module__": "monai.engines.trainer"})

    assert workflow().run(lambda: list(progress_notes.sources)) == ["monai"]


# -- Megatron-LM, torchtitan, composer, DeepSpeed


def test_megatrons_arguments_are_the_progress(monkeypatch):
    """megatron/training/global_vars.py:19; training.py sets curr_iteration in its loop."""
    training = ModuleType("training")
    training.evaluate_and_print_results = phase_now
    training.save_checkpoint_and_time = phase_now
    megatron.wrap(training)
    args = SimpleNamespace(
        curr_iteration=120, train_iters=500_000, consumed_train_samples=7680, seq_length=4096
    )
    before = read("megatron")
    monkeypatch.setitem(sys.modules, megatron.VARIABLES, SimpleNamespace(_GLOBAL_ARGS=args))
    found = read("megatron")

    assert before is None
    assert (found.step, found.total_steps, found.samples) == (120, 500_000, 7680.0)
    assert found.tokens == 7680 * 4096
    assert training.evaluate_and_print_results() == ["validate"]
    assert training.save_checkpoint_and_time() == ["checkpoint"]


def test_torchtitans_trainer_and_its_log(monkeypatch):
    """torchtitan 0.3: trainer.py:284, 563, 1076; components/metrics.py:260."""
    monkeypatch.setattr(torchtitan, "SOURCE", torchtitan.TitanSource())
    metrics = type("MetricsProcessor", (), {"log": lambda *arguments, **named: None})
    trainer = type("Trainer", (), {"train": lambda self: read("torchtitan")})
    validator = type("Validator", (), {"validate": lambda self: phase_now()})
    torchtitan.wrap_metrics(SimpleNamespace(MetricsProcessor=metrics))
    torchtitan.wrap_trainer(SimpleNamespace(Trainer=trainer))
    torchtitan.wrap_validator(SimpleNamespace(Validator=validator))
    metrics().log(90, 3.5, 4.0, 1.0, extra_metrics={})
    own = trainer()
    own.step, own.config = 100, SimpleNamespace(training=SimpleNamespace(steps=10_000))
    found = own.train()

    assert (found.step, found.total_steps, found.loss) == (100, 10_000, 3.5)
    assert validator().validate() == ["validate"]


def test_the_trainer_of_a_torchtitan_that_is_the_program_itself(monkeypatch):
    """`torchrun -m torchtitan.train` of 0.2: `trainer` is a global of `__main__`."""
    config = SimpleNamespace(training=SimpleNamespace(steps=10))
    own = type("Trainer", (Own,), {"train_step": print})(step=7, job_config=config)
    monkeypatch.setattr(sys.modules["__main__"], "trainer", own, raising=False)
    found = torchtitan.TitanSource().read()

    assert (found.step, found.total_steps) == (7, 10)


def test_the_timestamp_of_composer_is_the_progress():
    """composer 0.32: core/time.py:629-644, core/state.py:708, trainer/trainer.py:1933, 3314."""
    at = {"batch": 40, "epoch": 2, "sample": 1280, "token": 0}
    timestamp = SimpleNamespace(**{name: SimpleNamespace(value=one) for name, one in at.items()})
    most = SimpleNamespace(value=10, unit=SimpleNamespace(_value_="ep"))
    cls = type(
        "Trainer",
        (),
        {"fit": lambda self: read("composer"), "_eval_loop": lambda self: phase_now()},
    )
    composer.wrap(SimpleNamespace(Trainer=cls))
    trainer = cls()
    trainer.state = SimpleNamespace(timestamp=timestamp, max_duration=most)
    found = trainer.fit()

    assert (found.step, found.epoch, found.total_epochs) == (40, 2.0, 10.0)
    assert (found.samples, found.tokens, found.phase) == (1280.0, None, None)
    assert trainer._eval_loop() == ["validate"]


def test_the_counts_of_a_deepspeed_engine_are_the_progress():
    """deepspeed 0.19: runtime/engine.py; __getattr__ looks up missing attributes in the module."""

    class DeepSpeedEngine:
        def __init__(self, config):
            self.early = read("deepspeed")
            self.global_steps, self.global_samples = 8, 512
            self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.001}])

        def __getattr__(self, name):
            raise AssertionError(f"asked for {name}")

        def save_checkpoint(self):
            return phase_now()

    deepspeed.wrap(SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine))
    engine = DeepSpeedEngine("config")
    found = read("deepspeed")

    assert engine.early is None
    assert (found.step, found.samples, found.lr) == (8, 512.0, 0.001)
    assert engine.save_checkpoint() == ["checkpoint"]
