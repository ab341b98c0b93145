"""Adapters to the outside. Importing this package silences the telemetry of everything that it starts or imports."""

import os

os.environ.update(
    DO_NOT_TRACK="true",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    MLFLOW_DISABLE_TELEMETRY="true",
    MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true",
    HF_HUB_DISABLE_TELEMETRY="1",
    RAY_USAGE_STATS_ENABLED="0",
)
