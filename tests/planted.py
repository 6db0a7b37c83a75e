"""Secrets of many kinds, and innocent strings that look a little like them. A seed makes them, so
no scanner finds a real secret here.
"""

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections.abc import Callable

ALNUM = string.ascii_letters + string.digits
URLSAFE = ALNUM + "-_"
HEX = "0123456789abcdef"
EACH = 8
"""Secrets of each kind."""


def _of(dice: random.Random, alphabet: str, size: int) -> str:
    """This many characters, among them a small letter, a capital and a digit if the alphabet has
    all three.
    """
    while True:
        found = "".join(dice.choices(alphabet, k=size))
        if alphabet not in (ALNUM, URLSAFE) or (
            any(map(str.islower, found))
            and any(map(str.isupper, found))
            and any(map(str.isdigit, found))
        ):
            return found


def _password(dice: random.Random) -> str:
    return _of(dice, ALNUM, 5) + dice.choice("!#%^*") + _of(dice, ALNUM, 6)


def _jwt(dice: random.Random) -> tuple[str, str]:
    parts = "eyJ" + _of(dice, URLSAFE, 30), "eyJ" + _of(dice, URLSAFE, 60), _of(dice, URLSAFE, 43)
    return ".".join(parts), parts[2]


def _shape(prefix: str, alphabet: str, size: int) -> Callable[[random.Random], tuple[str, str]]:
    """The secret alone, as an argument or within a sentence: only its shape shows what it is."""

    def made(dice: random.Random) -> tuple[str, str]:
        core = _of(dice, alphabet, size)
        return prefix + core, core

    return made


def _named(
    form: str, alphabet: str = "", size: int = 0
) -> Callable[[random.Random], tuple[str, str]]:
    """The secret behind its name, with `{}` in its place."""

    def made(dice: random.Random) -> tuple[str, str]:
        core = _of(dice, alphabet, size) if alphabet else _password(dice)
        return form.format(core), core

    return made


def _pem(dice: random.Random) -> tuple[str, str]:
    core = _of(dice, ALNUM + "+/", 64)
    return f"-----BEGIN RSA PRIVATE KEY-----\n{core}\n-----END RSA PRIVATE KEY-----", core


def _key_block(
    begin: str, end: str, between: str = ""
) -> Callable[[random.Random], tuple[str, str]]:
    """The lines of a private key in the form of another program."""

    def made(dice: random.Random) -> tuple[str, str]:
        core = _of(dice, ALNUM + "+/", 60)
        return f"{begin}\n{between}{core}\n{end}", core

    return made


def _quoted(form: str, within: str) -> Callable[[random.Random], tuple[str, str]]:
    """A value with a quote or a backslash in it. What follows that is what must not be seen."""

    def made(dice: random.Random) -> tuple[str, str]:
        core = _of(dice, ALNUM, 12)
        return form.format(_of(dice, ALNUM, 6) + within + core), core

    return made


def _nested(dice: random.Random) -> tuple[str, str]:
    core = _password(dice)
    text = json.dumps({"user": "ada", "token": core})
    return json.dumps({"outer": json.dumps({"inner": text})}), core


def _basic(dice: random.Random) -> tuple[str, str]:
    core = base64.b64encode(f"ada:{_password(dice)}".encode()).decode()
    return f"Basic {core}", core


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "aws key id": _shape("AKIA", string.ascii_uppercase + string.digits, 16),
    "aws session key id": _shape("ASIA", string.ascii_uppercase + string.digits, 16),
    "aws secret key, named": _named("aws_secret_access_key = {}", ALNUM + "/+", 40),
    "aws secret key, bare": _shape("", ALNUM, 40),
    "hugging face": _shape("hf_", ALNUM, 34),
    "github classic": _shape("ghp_", ALNUM, 36),
    "github server": _shape("ghs_", ALNUM, 36),
    "github fine-grained": _shape("github_pat_", ALNUM, 59),
    "gitlab": _shape("glpat-", URLSAFE, 20),
    "openai": _shape("sk-proj-", ALNUM, 48),
    "anthropic": _shape("sk-ant-api03-", URLSAFE, 90),
    "stripe": _shape("sk_live_", ALNUM, 24),
    "slack": _shape("xoxb-1234567890-", ALNUM, 24),
    "slack webhook": _named("https://hooks.slack.com/services/T0001/B0002/{}", ALNUM, 24),
    "google api": _shape("AIza", URLSAFE, 35),
    "google oauth": _shape("ya29.", URLSAFE, 60),
    "npm": _shape("npm_", ALNUM, 36),
    "pypi": _shape("pypi-AgEIcHlwaS5vcmc", URLSAFE, 60),
    "nvidia": _shape("nvapi-", URLSAFE, 64),
    "databricks": _shape("dapi", HEX, 32),
    "sendgrid": _shape("SG.ngeVfQFYQlKU0ufo8x5d1A.", ALNUM, 43),
    "telegram": _shape("1234567890:AA", URLSAFE, 33),
    "jwt": _jwt,
    "private key": _pem,
    "basic header": _basic,
    "bearer": _named("Bearer {}", HEX, 40),
    "authorization header": _named("Authorization: token {}"),
    "wandb variable": _named("WANDB_API_KEY={}", HEX, 40),
    "--auth=": _named("--auth={}"),
    "--credentials": _named("--credentials {}"),
    "--secret with a dash": _named("--secret -{}"),
    "--pwd=": _named("--pwd={}"),
    "-p": _named("-p {}"),
    "hydra": _named("+trainer.logger.apiKey={}"),
    "password in a url": _named("postgresql://ada:{}@db.example.org:5432/runs"),
    "password with an at in a url": _named("redis://:x@y{}@cache:6379/0"),
    "token in a url": _named("https://{}@git.example.org/x.git", ALNUM, 20),
    "signed url": _named("https://blob.example.org/c?sv=1&sig={}&se=2", ALNUM + "%", 40),
    "json": _named('{{"user": "ada", "password": "{}"}}'),
    "json without blanks": _named('{{"client_secret":"{}","n":1}}'),
    "json in json": _named('{{\\"api_key\\": \\"{}\\"}}'),
    "yaml": _named("db_password: {}"),
    "python": _named("passwd = '{}'"),
    "bytes": _named("token=b'{}'"),
    "a literal with a prefix": _named('passwd = rb"{}"'),
    "bytes in a dictionary": _named("{{b'api_key': b'{}'}}"),
    "SecretStr": _named("SecretStr('{}')"),
    "SecretStr, named": _named('api_key=SecretStr("{}")'),
    "a quote in it": _quoted('password = "{}"', '\\"'),
    "an apostrophe in it": _quoted("--password='{}'", "\\'"),
    "a backslash in it": _quoted('"password": "{}"', "\\\\"),
    "a quote in it, in a line of source": _quoted("f(\"password=b'{}' is wrong\")", "\\\\'"),
    "a quote in it, without quotes": _quoted("password={}", '"'),
    "a quote in it, in json in json": _quoted('{{\\"api_key\\": \\"{}\\"}}', '\\\\\\"'),
    "json in json in json": _nested,
    "pgp key": _key_block(
        "-----BEGIN PGP PRIVATE KEY BLOCK-----", "-----END PGP PRIVATE KEY BLOCK-----", "\n"
    ),
    "ssh2 key": _key_block(
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----",
        "---- END SSH2 ENCRYPTED PRIVATE KEY ----",
        'Comment: "rsa-key"\n',
    ),
    "putty key": _key_block(
        "PuTTY-User-Key-File-3: ssh-ed25519", "Private-MAC: 00ff", "Private-Lines: 1\n"
    ),
    "teams webhook": _named(
        "https://acme.webhook.office.com/webhookb2/{}@acme/IncomingWebhook/x", HEX, 36
    ),
    "telegram webhook": _named("https://api.telegram.org/bot1234567890:AA{}/send", URLSAFE, 33),
    "slack workflow": _named("https://hooks.slack.com/workflows/T0001/B0002/{}", ALNUM, 24),
    "netrc": _named("machine api.example.org login ada password {}"),
    "netrc in lines": _named("machine api.example.org\n  login ada\n  password {}"),
    "docker": _shape("dckr_pat_", URLSAFE, 27),
    "runpod": _shape("rpa_", string.ascii_uppercase + string.digits, 46),
    "curl -u": _named("curl -s -u ada:{} https://example.org"),
    "curl --user": _named("curl --user 'ada:{}' https://example.org"),
    "azure": _named("AccountName=a;AccountKey={};EndpointSuffix=x", ALNUM, 86),
    "bare and long": _shape("", ALNUM, 32),
    "bare, safe in a url": _shape("", ALNUM, 43),
}  # fmt: skip


def secrets() -> list[tuple[str, str, str]]:
    """(kind, text, the part of it that must not be seen), the same on every call."""
    dice = random.Random(16)
    return [(kind, *make(dice)) for kind, make in KINDS.items() for _ in range(EACH)]


def innocent() -> list[str]:
    """Text that looks like a secret and is none, and text that a person needs to understand a
    job.
    """
    dice = random.Random(14)
    found = [_of(dice, HEX, 40) for _ in range(20)]
    found += [_of(dice, HEX, 8) for _ in range(10)]
    found += [str(uuid.UUID(int=dice.getrandbits(128))) for _ in range(25)]
    found += [f"sha256:{_of(dice, HEX, 64)}" for _ in range(10)] + [
        _of(dice, HEX, 64) for _ in range(10)
    ]
    found += [_of(dice, HEX, 32) for _ in range(15)]
    found += [
        f"run-20240511_1203{n:02}-{_of(dice, string.ascii_lowercase + string.digits, 8)}"
        for n in range(15)
    ]
    found += [
        f"wandb/run-20240511_120301-{_of(dice, string.ascii_lowercase, 8)}/files" for _ in range(5)
    ]
    found += [f"trainer-{_of(dice, HEX, 10)}-{_of(dice, HEX, 5)}" for _ in range(10)]
    found += [f"/data/Runs2024/ExpA1B2/ckpt_E{n}S4000/rank_{n:02}.pt" for n in range(10)]
    found += [f"{n * 977_431:,} bytes" for n in range(1, 6)] + [
        f"{1 << n}" for n in range(20, 45, 5)
    ]
    found += [f"https://node{n}.example.org:29500/status?page={n}" for n in range(5)]
    return found + NAMES


NAMES = [
    "_ZN2at6native10layer_normERKNS_6TensorEN3c108ArrayRefIlEES4_",
    "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEE",
    "ampere_sgemm_128x64_nn",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "ResNet50V1BottleneckBlock3x3",
    "TransformerEncoderLayerWithDropout2D",
    "MobileNetV3LargeWithSqueezeExcitation",
    "transformers.models.llama.tokenization_llama_fast.LlamaTokenizerFast",
    "exp_A100_bs64_LR3e4_v2_seed42_FP16_ZeRO3_TP8_PP4",
    "checkpoint_E12S4000_2024-05-11T12-03-01Z",
    "--tokenizer bert-base-uncased",
    "--max-tokens 4096",
    "--pad_token_id=0",
    "--key-dim 64",
    "num_key_value_heads=8",
    "tokens_per_s: 12345.6",
    "max_new_tokens=128",
    "TOKENIZERS_PARALLELISM=false",
    "if key == 3: pass",
    "for key, value in state_dict.items():",
    "KeyError: 'module.layer4.1.conv2.weight'",
    "Missing key(s) in state_dict: model.layers.0.self_attn.q_proj.weight",
    "sorted(rows, key=len)",
    "backward_pass: 3.1 ms",
    "author=ada",
    "tokenizer.py:40 load_tokens",
    "rank 3 (pid 41): state S, wchan futex_wait",
    "user@example.org",
    "git@github.com:pytorch/pytorch.git",
    "s3://bucket/datasets/imagenet-2012/train-00001-of-01024.tar",
    "tcp://10.0.0.7:29500",
    "file:///shared/rendezvous/store-4711",
    "env://",
    "/nix/store/2jysm3dfsgby5sw5jgj43qjrb5v79ms9-python3-3.11.9/lib/python3.11/site.py",
    "/home/ada/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "arn:aws:s3:::my-bucket/data",
    "nccl-2.21.5+cuda12.4",
    "2.6.0a0+df5bbc09d1.nv24.12",
    "Linux-6.8.0-1017-aws-x86_64-with-glibc2.39",
    "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'",  # noqa: E501
    "torchrun --nproc-per-node 8 --rdzv-id 4711 --rdzv-endpoint node0:29500 train.py",
    "python -m http.server -p 8000",
    "docker run -u 1000:1000 --user 0:0 image",
    "machine learning with a password prompt",
    "default login page",
    "key = b'weights'",
    "rpa_" + "x" * 30,
    "mkdir -p /tmp/out",
    "--use-token --lr 1e-4",
    "CUDA error: an illegal memory access was encountered",
    "keyboard_interrupt › passes › __getitem__",
    "16:59:40  critical: not-in-collective",
    "OMP_NUM_THREADS=8",
    "NCCL_SOCKET_IFNAME=eth0,ib0",
    "GPU-8f5d2a1c-3b7e-11ee-be56-0242ac120002",
    "registry.example.org:5000/team/train@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
]
