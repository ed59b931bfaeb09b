"""Loaded by vLLM's workers (``--worker-extension-cls``): stages weights, and switches to them.

It imports nothing of this project and runs in vLLM's environment. Upstream symbols:
``vllm.model_executor.model_loader.reload`` (``initialize_layerwise_reload``,
``finalize_layerwise_reload``), ``ParallelLMHead``, ``current_platform``, and the attributes of a
vLLM worker. Tested with vLLM 0.32.0.

vLLM's own weight update answers 200 to half of the weights, and has one set of weights. So a
version is read into host memory and checked there while samples run; only a whole one is switched
to; and the version before stays in host memory until the new one is proved.
"""

import threading
import zlib

import numpy as np
import torch
import vllm
from safetensors import SafetensorError, safe_open
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
_GOLDEN = np.uint32(0x9E3779B1)


class _Staging:
    """A version on its way into host memory."""

    def __init__(self, ticket, files, wanted):
        self.ticket, self.tensors, self.fingerprints = ticket, {}, {}
        self.error, self.unreadable, self.done = "", False, False
        self._files, self._wanted = files, wanted
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            for path in self._files:
                self._read(path)
            if missing := sorted(self._wanted.keys() - self.tensors.keys()):
                raise ValueError(f"tensor {missing[0]!r} is missing ({len(missing)} are)")
        except (ValueError, SafetensorError) as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001  such as out of memory: not of the bytes read
            self.error, self.unreadable = f"{type(error).__name__}: {error}", True
        if self.error:
            self.tensors = {}
        self.done = True

    def _read(self, path):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no mapping
                if name in self.tensors:
                    raise ValueError(f"tensor {name!r} is in two files")
                if name not in self._wanted:
                    raise ValueError(f"tensor {name!r} was not published")
                tensor = file.get_tensor(name).clone().contiguous()
                found = [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
                if found != self._wanted[name]:
                    raise ValueError(f"tensor {name!r} is {found}, not {self._wanted[name]}")
                self.tensors[name] = tensor
                self.fingerprints[name] = fingerprint(name, tensor)


def fingerprint(name, tensor):
    """odd(crc32(name)) * sum of word(x_i) * odd(i) mod 2^32, as the publisher defines it."""
    bits = tensor.reshape(-1).view(_BITS[tensor.element_size()]).numpy()
    total = 0
    for start in range(0, bits.size, 1 << 20):
        block = bits[start : start + (1 << 20)].astype(np.uint32)
        index = np.arange(start, start + block.size, dtype=np.uint64).astype(np.uint32) * _GOLDEN
        odd = (index ^ (index >> np.uint32(15))) | np.uint32(1)
        total += int(np.sum((block ^ (block >> np.uint32(16))) * odd, dtype=np.uint32))
    return total * (zlib.crc32(name.encode()) | 1) & 0xFFFFFFFF


class Extension:
    """Methods that vLLM's worker gets besides its own; called by ``/collective_rpc``."""

    _rlax_staging = _rlax_used = _rlax_before = None

    def rlax_describe(self):
        model, vllm_config = self.model_config, self.vllm_config
        return {
            "vllm": vllm.__version__,
            "vocabulary": model.get_vocab_size(),
            "context": model.max_model_len,
            "sequences": vllm_config.scheduler_config.max_num_seqs,
            "dtype": str(model.dtype).removeprefix("torch."),
            "logprobs_mode": str(model.logprobs_mode),
            "generation_config": str(model.generation_config),
            "quantization": str(model.quantization or ""),
            "speculative": vllm_config.speculative_config is not None,
        }

    def rlax_stage(self, ticket, files, wanted):
        """Begins to read a version; wanted: tensor name -> [shape, dtype].

        The version in use has been proved, so the one before it is forgotten. Answers which is in
        use: "" if none is.
        """
        self._rlax_before = None
        self._rlax_staging = _Staging(ticket, files, wanted)
        return {"applied": self._rlax_used.ticket if self._rlax_used else ""}

    def rlax_staged(self, ticket):
        """How far that is: done, error, and then name -> fingerprint."""
        one = self._rlax_staging
        if one is None or one.ticket != ticket:
            return {"done": True, "error": "another version is staged", "unreadable": True}
        if not one.done:
            return {"done": False}
        return {
            "done": True,
            "error": one.error,
            "unreadable": one.unreadable,
            "fingerprints": one.fingerprints,
        }

    def rlax_switch(self, ticket):
        """Switches to the staged version; no request may be running."""
        one = self._rlax_staging
        if one is None or one.ticket != ticket or not one.done or one.error:
            raise ValueError(f"version {ticket} is not staged")
        self._rlax_before, self._rlax_used, self._rlax_staging = self._rlax_used, one, None
        return self._rlax_apply()

    def rlax_back(self):
        """Returns to the version before; without one, the model is in use no more."""
        self._rlax_used, self._rlax_before = self._rlax_before, None
        return self._rlax_apply()

    def rlax_drop(self):
        """Drops a version that is only staged."""
        self._rlax_staging = None

    def _rlax_apply(self):
        if self._rlax_used is None:
            return {"applied": ""}
        model = self.model_runner.get_model()
        initialize_layerwise_reload(model)
        model.load_weights(iter(self._rlax_used.tensors.items()))
        finalize_layerwise_reload(model, self.model_config)
        if current_platform.is_cpu():
            # A head that shares the embedding keeps its packed copy of the weights before.
            for module in model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
        return {"applied": self._rlax_used.ticket}
