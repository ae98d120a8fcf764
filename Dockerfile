# Build: docker build -t rlproxy .
# Run:   docker run -p 127.0.0.1:6380:6380 rlproxy --upstream redis://my-redis:6379

# -- the wheel, compiled ---------------------------------------------------------------------------
FROM python:3.13-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY proxy proxy
COPY lua lua
ENV RLPROXY_COMPILE=1
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[embedded,top]"

# -- what runs -------------------------------------------------------------------------------------
FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "rlproxy[embedded,top]" \
    && useradd --system --no-create-home rlproxy
USER rlproxy
# Empty, so that it is an error to start without an upstream, `docker run -it` included. For a private
# server whose data ends with the container: --upstream embedded:
ENV RLPROXY_UPSTREAM=
# All addresses of the container: `docker run -p` decides which the host publishes.
ENV RLPROXY_LISTEN=0.0.0.0:6380
# Protected mode serves loopback clients only, and a container has none: published ports and other
# containers connect from the bridge's addresses. So it is off, as in the redis image. Publish the
# port to trusted networks only, or set a password on Redis' default user.
ENV RLPROXY_PROTECTED_MODE=no
EXPOSE 6380
# A liveness check: the port answers. Any reply will do, also that Redis is away or wants a password.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["rlproxy", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["rlproxy"]
