"""The study as configuration: params.yaml says what varies, a profile how large it is; together, every run.

The stages of dvc.yaml and `maquette train ladder/small` both read runs from here, so they cannot differ.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from experiments.configuration import Config, InputError, load, parse, read_yaml
from logs.catalogue import FOLDER as CATALOGUE
from replicas.data.sources import Source, load_sources
from replicas.published import load_published, published_runs
from replicas.training.experiment import Evaluation, Experiment, Machine, plan_experiment

Rung = Literal["small", "medium", "large"]
PROFILES = Path("experiments/profiles")
MIXTURE_NAME = re.compile(r"[a-z][a-z0-9-]*")
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class LadderParams(Config):
    """The mixture and seed that every rung of the ladder is trained with."""

    mixture: str
    seed: Seed


class AblationParams(Config):
    """Which rung is trained on which mixtures and seeds, and which mixture the others are measured against."""

    rung: Rung
    baseline: str
    mixtures: tuple[str, ...] = Field(min_length=2)
    seeds: tuple[Seed, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> "AblationParams":
        for name in ("mixtures", "seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"`{name}` lists one of its values twice")
        if self.baseline not in self.mixtures:
            raise ValueError("`baseline` must be one of `mixtures`")
        return self


class Params(Config):
    """params.yaml."""

    profile: str
    public_run: str
    mixtures: dict[str, dict[str, float]]
    ladder: LadderParams
    ablation: AblationParams

    @model_validator(mode="after")
    def _known_mixtures(self) -> "Params":
        named = {self.ladder.mixture, self.ablation.baseline, *self.ablation.mixtures}
        unknown = sorted(named - set(self.mixtures))
        if unknown:
            raise ValueError(f"no mixture {unknown[0]!r}; there are {', '.join(self.mixtures)}")
        for name, shares in self.mixtures.items():
            if not MIXTURE_NAME.fullmatch(name):  # it becomes part of paths and of stage commands
                raise ValueError(f"mixture {name!r}: use small letters, digits and -, a letter first")
            if any(share < 0 for share in shares.values()):
                raise ValueError(f"the shares of mixture {name!r} may not be negative")
            total = sum(shares.values())
            if abs(total - 1) > 1e-6:
                raise ValueError(f"the shares of mixture {name!r} must sum to 1, not {total:g}")
        return self


class CorpusSize(Config):
    """How much text is kept of each domain."""

    megabytes_per_domain: float = Field(gt=0)


class ShardsSize(Config):
    """The tokenizer's vocabulary, what it is trained on, and the share of text held out."""

    vocab_size: int = Field(ge=257)  # 256 bytes and the special token
    eval_fraction: float = Field(gt=0, lt=1)
    tokenizer_megabytes: float = Field(gt=0)


class Training(Config):
    """What all runs of a profile share; see `Experiment`."""

    shape: dict[str, int | float | None]
    seq_len: int
    batch_sequences: int
    evaluation: Evaluation
    checkpoint_every_seconds: float
    log_every_steps: int
    machine: Machine


class RungSize(Config):
    """One rung of the ladder."""

    width: int = Field(gt=0)
    tokens_per_active_param: float = Field(gt=0)


class Profile(Config):
    """experiments/profiles/<name>.yaml."""

    corpus: CorpusSize
    shards: ShardsSize
    training: Training
    rungs: dict[Rung, RungSize]

    @model_validator(mode="after")
    def _all_rungs(self) -> "Profile":
        if set(self.rungs) != {"small", "medium", "large"}:
            raise ValueError("`rungs` must have small, medium and large")
        return self


class Study(Config):
    """params.yaml and its profile."""

    params: Params
    profile: Profile

    def names(self) -> list[str]:
        """Every run of the study, e.g. `ladder/small`, `ablation/balanced/seed-0`."""
        ablation = self.params.ablation
        return [f"ladder/{rung}" for rung in self.profile.rungs] + [
            f"ablation/{mixture}/seed-{seed}" for mixture in ablation.mixtures for seed in ablation.seeds
        ]

    def experiment(self, name: str) -> Experiment:
        """The run called `name`.

        Raises:
            InputError: the study has no such run; its runs are listed.
        """
        params = self.params
        if name not in self.names():
            raise InputError(f"the study has no run {name!r}; it has {', '.join(self.names())}")
        parts = name.split("/")
        rung: Rung = params.ablation.rung if parts[0] == "ablation" else parts[1]  # type: ignore[assignment]
        mixture = parts[1] if parts[0] == "ablation" else params.ladder.mixture
        seed = int(parts[2].removeprefix("seed-")) if parts[0] == "ablation" else params.ladder.seed
        fields = {
            "name": name,
            "public_run": params.public_run,
            "mixture_name": mixture,
            "mixture": params.mixtures[mixture],
            "seed": seed,
            **self.profile.rungs[rung].model_dump(),
            **self.profile.training.model_dump(),
        }
        return parse(Experiment, fields, f"{PROFILES / params.profile}.yaml, run {name}")

    def planned_compute(self, name: str) -> tuple[float, int]:
        """Training FLOPs of the whole run called `name`, without the LM head, and its optimizer steps."""
        published = load_published(self.params.public_run)
        planned = plan_experiment(self.experiment(name), published, self.profile.shards.vocab_size)
        per_token = float(published.architecture.train_flops_per_token(planned.config))
        return per_token * planned.tokens, planned.steps


def load_study(folder: Path = Path()) -> Study:
    """The study of `folder`.

    Raises:
        InputError: a file is missing, has an unknown key or an impossible value, or names an unknown profile or
            public run.
    """
    params = load(folder / "params.yaml", Params)
    known = {path.stem: path for path in sorted((folder / PROFILES).glob("*.yaml"))}
    if params.profile not in known:
        raise InputError(
            f"{folder / 'params.yaml'}: `profile`: no profile {params.profile!r}; there are {', '.join(known)}"
        )
    _check_public_run(params.public_run, folder / "params.yaml")
    return Study(params=params, profile=load(known[params.profile], Profile))


def _check_public_run(name: str, where: Path) -> None:
    """A study trains by the run's configuration and compares with its log, so it needs both.

    Only names are looked at: this is checked by every stage, and before dvc.yaml's later ones put the name into
    paths and commands.
    """
    usable = sorted(set(published_runs()) & {path.stem for path in CATALOGUE.glob("*.yaml")})
    if name in usable:
        return
    close = get_close_matches(name, usable, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    raise InputError(
        f"{where}: `public_run`: no run {name!r} with both a published configuration and a public log; {hint}"
        f"there are {', '.join(usable)}"
    )


def _check_local_sources(folder: Path, sources: Sequence[Source]) -> None:
    """A folder of texts that DVC does not watch could change and leave the corpus as it was."""
    local = [source for source in sources if source.client == "local"]
    if not local:
        return
    stage = read_yaml(folder / "dvc.yaml").get("stages", {}).get("corpus", {})
    watched = [(folder / str(dependency)).resolve() for dependency in stage.get("deps", [])]
    for source in local:
        path = (folder / str(source.path)).resolve()
        if not any(path.is_relative_to(dependency) for dependency in watched):
            raise InputError(
                f"{folder / 'dvc.yaml'}: stage corpus does not depend on the local source {source.path}; add it to "
                "the stage's `deps`, so that a change of the texts is noticed"
            )


def check_study(folder: Path = Path()) -> Study:
    """`load_study`, with every run planned and every mixture's domains looked up, before anything long starts.

    Raises:
        InputError: see `load_study`; or a run that cannot be trained as described, named with the reason.
    """
    study = load_study(folder)
    domains = load_sources(folder / "experiments/sources.yaml").domains
    _check_local_sources(folder, [source for listed in domains.values() for source in listed])
    for name, shares in study.params.mixtures.items():
        unknown = [domain for domain in shares if domain not in domains]
        if unknown:
            raise InputError(
                f"{folder / 'params.yaml'}: mixture {name!r}: no domain {unknown[0]!r} in "
                f"experiments/sources.yaml; there are {', '.join(domains)}"
            )
    published = load_published(study.params.public_run)
    for name in study.names():
        plan_experiment(study.experiment(name), published, study.profile.shards.vocab_size)
    return study
