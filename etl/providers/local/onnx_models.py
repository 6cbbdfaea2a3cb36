"""Loading of models with ONNX Runtime. Runs only in the reader process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

DETECTION_MODEL, RECOGNITION_MODEL = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"


class EngineBroken(Exception):
    """The engine failed for a reason other than the document."""


class EngineNotLoaded(EngineBroken):
    """The engine could not be loaded. `__cause__` is the reason."""


def load_engine(create: Callable[[], Any]) -> Any:
    """Return a new engine. Raises EngineNotLoaded."""
    try:
        return create()
    except MemoryError:
        raise
    except Exception as error:  # any exception of the engine
        raise EngineNotLoaded from error


def create_session(model: Path, *, threads: int) -> Any:
    """Load a model with ONNX Runtime. The denormals option of the first session applies to all others."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # A memory pattern is one block for all tensors of a run. Blocks of pages of different sizes cannot replace each
    # other, so with them, memory grows with each size.
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # only fatal errors
    # By default, idle threads spin, which doubles the time per page if several workers share the cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Denormals slow down two layers of the detection model, which then take most of its time. The result is the same.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    # By default, the arena doubles.
    provider = ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    return onnxruntime.InferenceSession(str(model), options, providers=[provider])


def thread_count() -> int:
    """Return the number of threads. Two threads halve the time per page. More threads gain little."""
    return max(1, min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
