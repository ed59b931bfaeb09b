"""The figures of compiled programs: memory, collectives, and messages of the compiler."""

import jax
import jax.numpy as jnp
from jax.stages import Compiled

from maxtext_overrides.compiling.measured import collectives, compile_measured, shortened

# As the TPU's compiler writes it: a loop, a collective in two halves, and quoted text.
TPU = """%inner_body (p.1: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %start = (bf16[8,128]{1,0:T(8,128)}, bf16[8,256]{1,0}, /*index=2*/u32[]) all-gather-start(%x)
  %done = bf16[8,256]{1,0} all-gather-done(%start)
  %call = bf16[8,128]{1,0} custom-call(%product), metadata={op_name="a = b all-to-all(%x)"}
  ROOT %out = (s32[]{:T(128)}, bf16[8,128]{1,0}) tuple(%next, %call)
}
ENTRY %main (a: bf16[8,128]) -> bf16[8,128] {
  %all-gather.1 = bf16[8,256]{1,0} all-gather(%a), dimensions={1}
  ROOT %sum = bf16[8,128]{1,0} all-reduce(%all-gather.1), to_apply=%add
}
"""


def test_collectives_count_once_in_the_text() -> None:
    assert collectives(TPU) == {"all-gather": 2, "all-reduce": 1}


def test_memory_is_the_compilers() -> None:
    def run(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    likes = (
        jax.ShapeDtypeStruct((16, 64), jnp.float32),
        jax.ShapeDtypeStruct((64, 8), jnp.float32),
    )
    program = compile_measured(
        "step", "16 rows", lambda: jax.jit(run).lower(*likes).compile(), flops=7.0, beside={"a": 5}
    )
    assert not program.rejected and program.flops == 7.0 and program.collectives == {}
    assert program.memory["arguments"] == 4 * (16 * 64 + 64 * 8)
    assert program.memory["outputs"] == 4 * 16 * 8
    assert program.total_bytes == program.program_bytes + 5


def test_what_the_compiler_rejects_is_a_result() -> None:
    def rejected() -> Compiled:
        raise NotImplementedError(
            "this kernel needs a block of 128\n\nThe program:\n  lots of text"
        )

    program = compile_measured("step", "", rejected, flops=7.0, beside={})
    assert program.rejected == "this kernel needs a block of 128"
    assert program.memory == {} and program.flops == 0


def test_messages_are_shortened() -> None:
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (384.00G) exceeds available HBM (15.75G). HLO module: m.\n"
        "See https://openxla.org/xla/errors/error_1000 for more details."
    )
    assert shortened(ValueError(message)) == (
        "CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (384.00G) exceeds available HBM (15.75G). HLO module: m."
    )
