"""How Lightning's processes share the work: DDP, or FSDP over the memory of several GPUs."""

from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, cast

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, Strategy
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)
from torch.optim import Optimizer

from minigpt.checkpoint import read_checkpoint
from minigpt.model.block import Block
from minigpt.training.processes import launcher

#: What one process may wait for another before torch calls it lost. The others wait while the
#: first one writes a checkpoint or a sample, and machines while one of them prepares the corpus.
TIMEOUT = timedelta(minutes=30)
#: What FSDP puts into the names of the modules that it wraps, and leaves out of a checkpoint.
_WRAPPER = "_fsdp_wrapped_module."


def build_strategy(name: str, processes: int) -> Strategy | str:
    """Lightning's strategy for `trainer.strategy`; auto is DDP for more than one process."""
    match name:
        case "fsdp":
            return OneFileFSDP(auto_wrap_policy={Block}, timeout=TIMEOUT)
        case "auto" if processes == 1:
            return "auto"
        case _:
            return DDPStrategy(timeout=TIMEOUT)


def cluster_environment() -> ClusterEnvironment:
    """Where Lightning reads which process this is, the same way as `processes.is_first`.

    SLURM's signal to requeue is left alone: it would save another kind of checkpoint.
    """
    match launcher():
        case "torchrun":
            return TorchElasticEnvironment()
        case "SLURM":
            return SLURMEnvironment(auto_requeue=False)
        case _:
            return LightningEnvironment()


class OneFileFSDP(FSDPStrategy):
    """FSDP whose checkpoints are those of one process, in one file, whoever reads or writes them.

    torch's optimizers number their weights group by group, FSDP in the order of the model.
    """

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The gathered state with torch's own numbers, in the first process; empty elsewhere."""
        state: dict[str, Any] = super().optimizer_state(optimizer)
        if not state:
            return state
        numbers = {number: place for place, number in enumerate(_members(state))}
        groups = [
            group | {"params": [numbers[number] for number in group["params"]]}
            for group in state["param_groups"]
        ]
        moments = {numbers[number]: each for number, each in state["state"].items()}
        return {"state": dict(sorted(moments.items())), "param_groups": groups}

    def load_checkpoint(
        self,
        checkpoint_path: str | Path,
        weights_only: bool | None = None,  # noqa: FBT001  (Lightning's signature)
    ) -> dict[str, Any]:
        """The checkpoint, once each process has its shards of the weights and of the optimizer."""
        del weights_only  # `read_checkpoint` takes nothing else
        checkpoint = read_checkpoint(Path(checkpoint_path))
        wrapped = cast("FullyShardedDataParallel", self.model)
        (optimizer,), (saved,) = self.optimizers, checkpoint["optimizer_states"]
        with FullyShardedDataParallel.state_dict_type(
            wrapped,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(rank0_only=False),
            FullOptimStateDictConfig(rank0_only=False),
        ):
            wrapped.load_state_dict(checkpoint["state_dict"])
            names = {
                id(weight): name.replace(_WRAPPER, "")
                for name, weight in wrapped.named_parameters()
            }
            own = (
                names[id(weight)] for weight in _members({"param_groups": optimizer.param_groups})
            )
            name_of = dict(zip(_members(saved), own, strict=True))
            state = FullyShardedDataParallel.optim_state_dict_to_load(
                wrapped,
                optimizer,
                {
                    "state": {name_of[number]: each for number, each in saved["state"].items()},
                    "param_groups": [
                        group | {"params": [name_of[number] for number in group["params"]]}
                        for group in saved["param_groups"]
                    ],
                },
            )
        optimizer.load_state_dict(state)
        return checkpoint


def _members(state: dict[str, Any]) -> list[Any]:
    return list(chain.from_iterable(group["params"] for group in state["param_groups"]))
