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

from ddtop.phrase_words import WORDS

ALNUM = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
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


def _parts(
    prefix: str, *parts: tuple[str, int], between: str = "."
) -> Callable[[random.Random], tuple[str, str]]:
    """A token of several parts. The last one with a text is what must not be seen."""

    def made(dice: random.Random) -> tuple[str, str]:
        found = [_of(dice, alphabet, size) if size else "" for alphabet, size in parts]
        return prefix + between.join(found), [part for part in found if part][-1]

    return made


def _phrase(words: int, between: str = " ") -> Callable[[random.Random], tuple[str, str]]:
    """A wallet's recovery phrase. Its last two words must not be seen."""

    def made(dice: random.Random) -> tuple[str, str]:
        found = dice.sample(sorted(word for word in WORDS if len(word) > 5), words)
        return between.join(found), between.join(found[-2:])

    return made


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
    "signed url of aws": _named("s3.example.org/a?X-Amz-Signature={}&x=1", HEX, 64),
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


# Tokens that their shape alone shows, wherever they stand.
SHAPED: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    kind: KINDS[kind]
    for kind in (
        "aws key id", "aws session key id", "hugging face", "github classic", "github server",
        "github fine-grained", "gitlab", "openai", "anthropic", "stripe", "google api",
        "google oauth", "npm", "pypi", "nvidia", "databricks", "sendgrid", "telegram", "jwt",
        "docker", "runpod",
    )
} | {
    "hugging face oauth": _shape("hf_" + "oauth_", URLSAFE, 60),
    "hugging face oauth, a jwt": _parts("hf_" + "oauth_eyJ", (URLSAFE, 30), (URLSAFE, 80)),
    "google service oauth": _shape("ya29" + ".c.", URLSAFE, 80),
    "google auth key": _shape("AQ" + ".Ab8", URLSAFE, 48),
    "google refresh": _shape("1/" + "/0", URLSAFE, 60),
    "google client secret": _shape("GOCSPX" + "-", URLSAFE, 28),
    "google storage hmac": _shape("GOOG" + "1E", UPPER, 58),
    "age": _shape("AGE-SECRET-" + "KEY-1", UPPER, 58),
    "age, post-quantum": _shape("AGE-SECRET-" + "KEY-PQ-1", UPPER, 90),
    "age plugin": _shape("AGE-" + "PLUGIN-YUBIKEY-1", UPPER, 30),
    "openshift": _shape("sha256" + "~", URLSAFE, 43),
    "entra client secret": _parts("", (ALNUM, 3), (ALNUM, 34), between="8" + "Q~"),
    "entra client secret with marks": _parts("~_.", ("", 0), (URLSAFE + "~.", 34), between="7Q~"),
    "databricks secret": _shape("do" + "se", HEX, 32),
    "databricks, second": _shape("da" + "pi", HEX, 32),
    "digitalocean personal": _shape("dop" + "_v1_", HEX, 64),
    "digitalocean oauth": _shape("doo" + "_v1_", HEX, 64),
    "digitalocean refresh": _shape("dor" + "_v1_", HEX, 64),
    "jwe with an empty key": _parts("eyJ", (URLSAFE, 30), ("", 0), (URLSAFE, 16), (URLSAFE, 60)),
    "jws without a body": _parts("eyJ", (URLSAFE, 30), ("", 0), (URLSAFE, 43)),
    "github server, a jwt": _parts("ghs" + "_1234567_eyJ", (URLSAFE, 30), (URLSAFE, 90)),
    "github user": _shape("ghu" + "_", ALNUM, 36),
    "gitlab runner": _shape("glrt" + "r-", URLSAFE, 20),
    "gitlab runner, older": _shape("GR13" + "48941", URLSAFE, 20),
    "gitlab agent": _shape("glag" + "ent-", URLSAFE, 50),
    "gitlab mail": _shape("glimt" + "-", URLSAFE, 25),
    "xai": _shape("xai" + "-", ALNUM, 80),
    "groq": _shape("gsk" + "_", ALNUM, 52),
    "perplexity": _shape("pplx" + "-", ALNUM, 48),
    "openai of a service": _shape("sk-" + "svcacct-", URLSAFE, 60),
    "openrouter": _shape("sk-" + "or-v1-", HEX, 64),
    "cerebras": _shape("csk" + "-", ALNUM, 48),
    "pinecone": _parts("pcsk" + "_", (ALNUM, 6), (ALNUM, 60), between="_"),
    "tavily": _shape("tvly" + "-dev-", ALNUM, 32),
    "jina": _parts("jina" + "_", (HEX, 32), (ALNUM, 28), between=""),
    "langsmith": _parts("lsv2" + "_pt_", (HEX, 32), (HEX, 10), between="_"),
    "kaggle": _shape("KGAT" + "_", HEX, 32),
    "notion": _shape("ntn" + "_", ALNUM, 46),
    "replicate": _shape("r8" + "_", ALNUM, 37),
    "together": _shape("tgp" + "_v1_", URLSAFE, 43),
    "wandb": _shape("wandb" + "_v1_", ALNUM, 77),
    "modal": _shape("as" + "-", ALNUM, 22),
    "neptune": _shape("eyJh" + "cGlf", ALNUM, 120),
    "bedrock": _shape("AB" + "SK", ALNUM, 120),
    "aws session token": _shape("IQoJb3" + "JpZ2lu", ALNUM + "+/", 300),
    "alibaba": _shape("LT" + "AI", ALNUM, 20),
    "tailscale": _parts("tskey" + "-auth-", (ALNUM, 17), (ALNUM, 32), between="-"),
    "tailscale client": _parts("tskey" + "-client-", (ALNUM, 17), (ALNUM, 32), between="-"),
    "cloudflare origin": _parts("v1" + ".0-", (HEX, 24), (HEX, 146), between="-"),
    "terraform": _parts("", (ALNUM, 14), (ALNUM, 67), between=".atlas" + "v1."),
    "vault": _shape("hvs" + ".", URLSAFE, 90),
    "vault, older": _shape("s" + ".", ALNUM, 24),
    "doppler": _shape("dp" + ".pt.", ALNUM, 43),
    "dynatrace": _parts("dt0" + "c01.", (UPPER, 24), (UPPER, 64)),
    "fly": _shape("fo" + "1_", URLSAFE, 43),
    "heroku": _shape("HRKU" + "-AA", URLSAFE, 58),
    "new relic": _shape("NRAK" + "-", UPPER, 27),
    "planetscale": _shape("pscale" + "_pw_", URLSAFE, 43),
    "posthog": _shape("phx" + "_", ALNUM, 43),
    "1password": _parts("A3-ABC123-", (UPPER, 11), (UPPER, 5), (UPPER, 5), (UPPER, 5), between="-"),
    "pulumi": _shape("pul" + "-", HEX, 40),
    "supabase": _shape("sbp" + "_", HEX, 40),
    "airtable": _parts("pat", (ALNUM, 14), (HEX, 64)),
    "harness": _parts("pat" + ".", (URLSAFE, 22), (ALNUM, 24), (ALNUM, 20)),
    "artifactory": _shape("AKC" + "p8", ALNUM, 68),
    "rubygems": _shape("rubygems" + "_", HEX, 48),
    "dbt": _shape("dbtc" + "_", ALNUM, 40),
    "sonarqube": _shape("sqp" + "_", HEX, 40),
    "sentry user": _shape("sntryu" + "_", HEX, 64),
    "atlassian": _shape("ATAT" + "T3", URLSAFE, 180),
    "bitbucket": _shape("AT" + "BB", ALNUM, 32),
    "octopus": _shape("API" + "-", UPPER, 26),
    "slack app": _parts("xapp-1-", (UPPER, 11), (string.digits, 13), (HEX, 64), between="-"),
    "slack configuration": _parts("xoxe" + ".xoxp-1-", ("", 0), (ALNUM, 160), between=""),
    "discord": _parts("M", (ALNUM, 25), (ALNUM, 6), (ALNUM, 38)),
    "brevo": _parts("xkeys" + "ib-", (HEX, 64), (ALNUM, 16), between="-"),
    "mailchimp": _parts("", (HEX, 32), ("", 0), between="-us12"),
    "mailgun": _shape("key" + "-", HEX, 32),
    "twilio": _shape("S" + "K", HEX, 32),
    "facebook page": _shape("EAA" + "M", ALNUM, 120),
    "facebook app": _parts("", (string.digits, 15), (ALNUM, 27), between="|"),
    "square": _shape("sq0" + "csp-", URLSAFE, 43),
    "easypost": _shape("EZ" + "AK", ALNUM, 54),
    "stripe webhook": _shape("whs" + "ec_", ALNUM, 32),
    "shopify": _shape("shp" + "at_", HEX, 32),
    "linear": _shape("lin" + "_api_", ALNUM, 40),
    "figma": _shape("fig" + "d_", URLSAFE, 40),
    "grafana": _parts("gls" + "a_", (ALNUM, 32), (HEX, 8), between="_"),
    "postman": _parts("PMA" + "K-", (HEX, 24), (HEX, 34), between="-"),
}  # fmt: skip
PHRASES = {f"a phrase of {words} words": _phrase(words) for words in (12, 15, 18, 21, 24)} | {
    "a phrase with commas": _phrase(12, ", "),
    "a phrase as a list": _phrase(12, '", "'),
    "a phrase in lines": _phrase(24, "\n"),
    "a phrase in a url": _phrase(12, "%20"),
    "a phrase as a name": _phrase(12, "-"),
}
KINDS |= SHAPED | PHRASES

# Where a text stands, with innocent names around it.
FORMS = {
    "bare": "{}",
    "in a sentence": "failed with {} at once",
    "at the end of a sentence": "it is {}.",
    "in brackets": "({})",
    "key=value": "thing={}",
    "in quotes": "thing = '{}'",
    "yaml": "thing: {}",
    "json": '{{"thing": "{}"}}',
    "json in json": '{{\\"thing\\": \\"{}\\"}}',
    "in a list": "[a, {}, b]",
    "url query": "https://example.org/a?thing={}&n=1",
    "escaped url query": "https%3A%2F%2Fexample.org%2Fa%3Fthing%3D{}",
    "url fragment": "https://example.org/a#{}",
    "url path": "https://example.org/a/{}/b",
    "userinfo": "https://ada:{}@example.org/x",
    "user": "https://{}@example.org/x",
    "header": "X-Thing: {}",
    "path": "/data/{}/part-00001.bin",
    "file": "/data/{}.pt",
    "file with a name before": "/data/run_{}.py",
    "file with a number after": "/data/{}-00001",
    "a name after": "{}_step_3",
    "after an escaped newline": "failed:\\n{}\\n",
    "in colour": "\x1b[31m{}\x1b[0m",
}

# Where a secret stands behind its name, so that any value is one.
NAMED_FORMS = {
    "key=value": "{name}={value}",
    "option": "--{name}={value}",
    "option and word": "--{name} {value}",
    "hydra": "+job.{name}={value}",
    "in quotes": "{name} = '{value}'",
    "yaml": "{name}: {value}",
    "json": '{{"{name}": "{value}"}}',
    "json in json": '{{\\"{name}\\": \\"{value}\\"}}',
    "python": "f({name}='{value}')",
    "url query": "https://example.org/a?n=1&{name}={value}&m=2",
    "header": "X-{name}: {value}",
}
NAMES_OF_SECRETS = ("token", "api_key", "password", "client_secret", "WANDB_API_KEY", "access-key")
# The words of a command line, each of which is a word of its own. `{}` is one or within one.
SPLIT_FORMS = [
    ["--token", "{}"],
    ["--api-key", "{}"],
    ["-p", "{}"],
    ["-p{}"],
    ["token", "=", "{}"],
    ["password:", "{}"],
    ["X-Api-Key:", "{}"],
    ["-H", "Authorization:", "Bearer", "{}"],
    ["-H", "Authorization: Bearer", "{}"],
    ["-H", "Authorization:", "token", "{}"],
    ["-H", "Authorization: token", "{}"],
    ["-H", "authorization:", "{}"],
    ["-H", "Authorization: Bearer {}"],
    ["-HAuthorization: Bearer {}"],
    ["--header=Authorization: Basic {}"],
    ["Bearer", "{}"],
    ["-u", "ada:{}"],
    ["-uada:{}"],
    ["-U", "ada:{}"],
    ["--user", "ada:{}"],
    ["--proxy-user", "ada:{}"],
    ["-passin", "pass:{}"],
    ["-----BEGIN", "RSA", "PRIVATE", "KEY-----", "{}", "-----END", "RSA", "PRIVATE", "KEY-----"],
]


def shaped() -> list[tuple[str, str, str]]:
    """As `secrets`, those that can stand in each of FORMS."""
    dice = random.Random(60)
    return [(kind, *make(dice)) for kind, make in SHAPED.items() for _ in range(EACH)]


def values() -> list[str]:
    """What may stand behind a secret's name."""
    dice = random.Random(61)
    return [_password(dice), _of(dice, HEX, 40), _of(dice, ALNUM, 24), _of(dice, URLSAFE, 43)]


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
    found += [_of(dice, HEX, 96) for _ in range(3)]
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
    # Names that begin as a token does.
    "sk-learn-pipeline-v2-final-model",
    "sk_test_regression_model_on_small_data",
    "rk_integration_step_4_of_many",
    "local_rank_0_checkpoint_step_1000_final",
    "key_value_cache_layer_12_head_3_projection",
    "key-points-detection-model-2024",
    "jina_embeddings_v3_modeling_for_search",
    "tfp_distributions_normal_with_scale_2",
    "fw_bw_pass_step_2_of_microbatch_3",
    "rf_model_depth_12_trees_500_fold_3",
    "r8_quantized_model_v2_weights_final",
    "as_TransferFunctionMatrixOfSystems",
    "hf_model_weights_iterator_of_shards",
    "pul-requests-are-merged-by-the-bot",
    "v1.0-rc2-of-the-release",
    "sha256-of-the-archive",
    "s.attribute_of_the_module_4",
    "dp.utils.distribute_tensors_over_replicas",
    "MegatronGPTModel.layers.self_attention_linear_qkv_weight",
    "OpenAIGPTDoubleHeadsModel.layers.self_attention_layer_norm_bias",
    "npm_config_registry_of_the_company",
    "API-reference-of-the-new-release",
    "age-secret-key of the patient",
    "eyJ is how a token begins",
    "wait for the other ranks and then begin the next step with the same batch as the first one",
    "conv pool norm gate head tail mask loss step rank node host port file path name",
    "the basic token of a language model is a word or a part of one",
    "a bearer bond",
    "ModelParallelConfig8x22BInstruct",
    "mkdir -p /tmp/out",
    "--use-token --lr 1e-4",
    "CUDA error: an illegal memory access was encountered",
    "keyboard_interrupt › passes › __getitem__",
    "16:59:40  critical: not-in-collective",
    "OMP_NUM_THREADS=8",
    "NCCL_DEBUG=INFO",
    "see https://pytorch.org/docs?page=2 and user@example.org",
    "NCCL_SOCKET_IFNAME=eth0,ib0",
    "GPU-8f5d2a1c-3b7e-11ee-be56-0242ac120002",
    "registry.example.org:5000/team/train@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
]
