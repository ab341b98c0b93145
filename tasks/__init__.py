"""Adapters to the outside. Importing this package turns off the telemetry of everything that it starts or imports."""

import os

os.environ.update(
    DO_NOT_TRACK="true",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    MLFLOW_DISABLE_TELEMETRY="true",
    HF_HUB_DISABLE_TELEMETRY="1",
)
