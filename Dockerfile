# afield as a command: docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" afield data show photos/
# PyTorch's wheels for CUDA are large; for CPUs alone, build with
#   --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
FROM python:3.11-slim

# Triton builds afield's fused kernels when they are first used on a GPU, and needs a C compiler for it.
# The distribution's version will do, whichever it is.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

ARG PIP_EXTRA_INDEX_URL
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[hub,export,report]' \
    && rm -rf /build/*

# Whoever runs it, by --user too, can write to the caches: digits, decoded images, downloaded weights.
RUN useradd --create-home afield && mkdir --mode=1777 /cache && mkdir --mode=1777 /work
ENV HOME=/home/afield \
    USER=afield \
    XDG_CACHE_HOME=/cache \
    XDG_CONFIG_HOME=/cache/config \
    PYTHONUNBUFFERED=1
USER afield
WORKDIR /work
ENTRYPOINT ["afield"]
CMD ["--help"]
