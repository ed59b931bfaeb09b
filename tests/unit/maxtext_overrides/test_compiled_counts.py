"""Operations and collectives of compiled programs, counted with the rounds of their loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from maxtext_overrides.compiling import hlo, hlo_counts, kernels
from maxtext_overrides.compiling.measured import compile_measured, shortened

# As the TPU's compiler writes it: no known trip counts, matrix products as convolutions, a counter
# behind a copy and a fusion, a collective in two halves, and quoted text with a line break.
TPU = """HloModule jit_step, entry_computation_layout={()->f32[]}

%add.clone (x: s32[], y: s32[]) -> s32[] {
  %x = s32[]{:T(128)} parameter(0)
  %y = s32[]{:T(128)} constant(2)
  ROOT %sum = s32[]{:T(128)} add(%x, %y)
}

%inner_condition (p: (s32[], bf16[8,128])) -> pred[] {
  %p = (s32[]{:T(128)}, bf16[8,128]{1,0}) parameter(0)
  %end = s32[]{:T(128)} constant(8)
  %at = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %less = pred[]{:T(512)} compare(%at, %end), direction=LT
}

%inner_body (p.1: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %p.1 = (s32[]{:T(128)}, bf16[8,128]{1,0}) parameter(0)
  %at.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  %next = s32[]{:T(128)} fusion(%at.1), kind=kLoop, calls=%add.clone
  %left = bf16[8,128]{1,0} get-tuple-element(%p.1), index=1
  %weights = bf16[128,128]{1,0} constant({...})
  %product = bf16[8,128]{1,0} convolution(%left, %weights), dim_labels=bf_io->bf
  %start = (bf16[8,128]{1,0}, bf16[8,256]{1,0}, u32[]) all-gather-start(%product), dimensions={1}
  %done = bf16[8,256]{1,0} all-gather-done(%start)
  %call = bf16[8,128]{1,0} custom-call(%product), custom_call_target="tpu_custom_call", metadata={
"a": "while(%x), condition=%y"
}
  ROOT %out = (s32[]{:T(128)}, bf16[8,128]{1,0}) tuple(%next, %call)
}

%outer_condition (q: (s32[], bf16[8,128])) -> pred[] {
  %q = (s32[]{:T(128)}, bf16[8,128]{1,0}) parameter(0)
  %last = s32[]{:T(128)} constant(5)
  %i = s32[]{:T(128)} get-tuple-element(%q), index=0
  ROOT %le = pred[] compare(%i, %last), direction=LE
}

%outer_body (q.1: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %q.1 = (s32[]{:T(128)}, bf16[8,128]{1,0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%q.1), index=0
  %one = s32[]{:T(128)} constant(1)
  %i.2 = s32[]{:T(128)} add(%i.1, %one)
  %zero = s32[]{:T(128)} constant(0)
  %zero.copy = s32[]{:T(128)} copy(%zero)
  %rows = bf16[8,128]{1,0} get-tuple-element(%q.1), index=1
  %given = (s32[]{:T(128)}, /*index=1*/bf16[8,128]{1,0}) tuple(%zero.copy, /*index=1*/%rows)
  %loop = (s32[]{:T(128)}, bf16[8,128]{1,0}) while(%given), condition=%inner_condition, \
body=%inner_body
  %rows.1 = bf16[8,128]{1,0} get-tuple-element(%loop), index=1
  ROOT %back = (s32[]{:T(128)}, bf16[8,128]{1,0}) tuple(%i.2, %rows.1)
}

ENTRY %main (a: bf16[8,128]) -> bf16[8,128] {
  %a = bf16[8,128]{1,0} parameter(0)
  %three = s32[]{:T(128)} constant(3)
  %begin = (s32[]{:T(128)}, bf16[8,128]{1,0}) tuple(%three, %a)
  %outer = (s32[]{:T(128)}, bf16[8,128]{1,0}) while(%begin), condition=%outer_condition, \
body=%outer_body
  ROOT %result = bf16[8,128]{1,0} get-tuple-element(%outer), index=1
}
"""


def test_loops_whose_rounds_constants_determine() -> None:
    found = hlo_counts.count(hlo.parse(TPU))
    rounds = 3 * 4  # the outer counter is 3, 4, 5; the inner one 0, 2, 4, 6
    assert found.flops == rounds * 2 * 8 * 128 * 128
    assert found.collectives == {"all-gather": rounds}
    assert found.collective_bytes == {"all-gather": rounds * 8 * 256 * 2}
    assert found.unknown_loops == ()


def test_a_loop_whose_end_is_not_constant_counts_once_and_is_named() -> None:
    text = TPU.replace("%last = s32[]{:T(128)} constant(5)", "%last = s32[] parameter(1)")
    found = hlo_counts.count(hlo.parse(text))
    assert found.flops == 4 * 2 * 8 * 128 * 128
    assert found.unknown_loops == ("outer",)


def convolution(window: str, labels: str, left: str, kernel: str, out: str) -> float:
    text = (
        "HloModule m\n\nENTRY %main (a: f32[1], b: f32[1]) -> f32[1] {\n"
        f"  %a = {left} parameter(0)\n  %b = {kernel} parameter(1)\n"
        f"  ROOT %c = {out} convolution(%a, %b), window={{{window}}}, dim_labels={labels}\n}}\n"
    )
    return hlo_counts.count(hlo.parse(text)).flops


def test_products_with_padding_do_not_count() -> None:
    # [2048, 2 x 256] by [2 x 256, 8 x 128]: heads are an axis whose window reaches into padding.
    found = convolution(
        "size=8x2 pad=7_7x0_0 rhs_reversal=1x0",
        "b1f0_1i0o->b0f1",
        "bf16[2048,2,256,1]",
        "bf16[2,256,8,128]",
        "bf16[2048,8,128,1]",
    )
    assert found == 2 * 2048 * (2 * 256) * (8 * 128)
    # A batch of 16 products as a convolution whose inputs are dilated.
    found = convolution(
        "size=16 stride=15 lhs_dilate=16",
        "0bf_0io->0bf",
        "f32[16,32,64]",
        "f32[16,64,8]",
        "f32[16,32,8]",
    )
    assert found == 2 * 16 * 32 * 64 * 8


@pytest.mark.parametrize("layers", [1, 7])
def test_a_scan_counts_each_layer(layers: int) -> None:
    def run(x: jax.Array, stacked: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, stacked)[0]

    likes = (
        jax.ShapeDtypeStruct((16, 64), jnp.float32),
        jax.ShapeDtypeStruct((layers, 64, 64), jnp.float32),
    )
    program, compiled = compile_measured("step", "16 rows", jax.jit(run), likes, beside={"a": 5})
    assert compiled is not None and not program.rejected
    assert program.flops == layers * 2 * 16 * 64 * 64
    assert program.memory["arguments"] == 4 * (16 * 64 + layers * 64 * 64)
    assert program.total_bytes == program.program_bytes + 5
    assert program.collectives == {} and program.notes == ()


def test_a_loop_that_data_end_is_noted() -> None:
    def run(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda h: jnp.sum(h) < 10, lambda h: h @ h, x)

    like = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    program, _ = compile_measured("step", "", jax.jit(run), (like,), beside={})
    assert program.flops == 2 * 32**3
    assert program.notes == (
        "a loop runs as often as the data require, and the figures count one round",
    )


def test_kernels_are_counted_in_the_traced_program() -> None:
    def kernel(x_ref, y_ref, out_ref) -> None:
        @pl.when(pl.program_id(0) > 0)
        def _() -> None:
            out_ref[...] = x_ref[...] @ y_ref[...]

    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        product = pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[
                pl.BlockSpec((8, 32), lambda i: (i, 0)),
                pl.BlockSpec((32, 32), lambda i: (0, 0)),
            ],
            out_specs=pl.BlockSpec((8, 32), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((32, 32), jnp.float32),
            name="product",
        )
        return jax.lax.scan(lambda h, _: (product(h, y), None), x, length=3)[0]

    x = jnp.ones((32, 32))
    found = kernels.count(jax.jit(run).trace(x, x).jaxpr)
    assert found.flops == 3 * 4 * 2 * 8 * 32 * 32
    assert list(found.calls.values()) == [3] and found.uncounted == ()


def test_what_the_compiler_rejects_is_a_result() -> None:
    def run(x: jax.Array) -> jax.Array:
        raise NotImplementedError(
            "this kernel needs a block of 128\n\nThe program:\n  lots of text"
        )

    program, compiled = compile_measured("step", "", jax.jit(run), (np.ones(3),), beside={})
    assert compiled is None
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
