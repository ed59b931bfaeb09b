# An image for every process of a run: rlax train, rlax serve, rlax parameter-server.
#
#   docker build --tag rlax:1 .                          for CPUs
#   docker build --tag rlax:1 --build-arg JAX=tpu .      for TPUs; any extra of jax, such as cuda12
#
# docs/operate.md says how it is used.

FROM python:3.12-bookworm AS build
ARG JAX=""
ENV VIRTUAL_ENV=/opt/venv UV_NO_CACHE=1
WORKDIR /opt/rlax
COPY requirements.lock ./
# Compiled while the image is built: otherwise every process compiles what it imports again, and
# the import of MaxText takes 18 s of CPU instead of 8.
RUN grep '^uv==' requirements.lock > uv.txt \
    && pip install --no-cache-dir --requirement uv.txt \
    && uv venv "$VIRTUAL_ENV" \
    && uv pip install --compile-bytecode --requirements requirements.lock \
    && if [ -n "$JAX" ]; then \
        uv pip install --compile-bytecode --constraints requirements.lock "jax[$JAX]"; \
    fi
COPY . .
RUN uv pip install --no-deps --no-build-isolation --editable . \
    && python -m compileall -q rlax_plugin plugins maxtext_overrides

FROM python:3.12-slim-bookworm
RUN useradd --uid 1000 --create-home rlax
COPY --from=build /opt/venv /opt/venv
# With the built-in plug-ins, and the configs whose relative paths begin here.
COPY --from=build /opt/rlax /opt/rlax
ENV PATH=/opt/venv/bin:$PATH
USER 1000
WORKDIR /opt/rlax
CMD ["rlax", "--help"]
