"""Runs in MLflow: a database in a folder, or a server or database that a URI names."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from .tracker import package

OPTION, EXTRA = "--mlflow", "mlflow"
EXPERIMENT = "delian"
#: The statuses of MLflow's runs.
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
#: What MLflow's API takes in one call, and the longest value of a parameter.
_PER_CALL, _VALUE_MAX = 100, 6000


class MlflowRuns:
    """A `Tracker`. Raises DelianError where the package is missing or the store refuses.

    target: a folder, in which the database mlflow.db is made (MLflow's store of plain files is no
    longer maintained), or a URI: `sqlite:///file.db`, `http://host:5000`.
    """

    def __init__(self, target: str) -> None:
        # Delian sends nothing about its use anywhere, and nor do the packages that it loads.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        package("mlflow", OPTION, EXTRA)
        self._tracking = package("mlflow.tracking", OPTION, EXTRA)
        self._entities = package("mlflow.entities", OPTION, EXTRA)
        self._run, self.uri = "", target
        logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # of the tables that it makes
        logging.getLogger("alembic").setLevel(logging.WARNING)
        artifacts = None
        try:
            if "://" not in target:
                folder = Path(target).absolute()
                folder.mkdir(parents=True, exist_ok=True)
                self.uri = f"sqlite:///{folder / 'mlflow.db'}"
                artifacts = (folder / "artifacts").as_uri()
            self._client: Any = self._tracking.MlflowClient(tracking_uri=self.uri)
            known = self._client.get_experiment_by_name(EXPERIMENT)
            self._experiment = (
                self._client.create_experiment(EXPERIMENT, artifact_location=artifacts)
                if known is None
                else known.experiment_id
            )
        except Exception as error:  # of the store's many libraries
            why = str(error).partition("\n")[0] or type(error).__name__
            raise DelianError(
                f"MLflow cannot use {target}: {why}",
                "give --mlflow a folder, sqlite:///FILE or the address of a server",
            ) from error

    def started(self, name: str, settings: Mapping[str, str], time_ms: int) -> None:
        made = self._client.create_run(self._experiment, start_time=time_ms, run_name=name)
        self._run = made.info.run_id
        given = [
            self._entities.Param(key, value[:_VALUE_MAX])
            for key, value in settings.items()
            if value
        ]
        for start in range(0, len(given), _PER_CALL):
            self._client.log_batch(self._run, params=given[start : start + _PER_CALL])

    def figures(self, step: int, values: Mapping[str, float], time_ms: int) -> None:
        metrics = [self._entities.Metric(k, v, time_ms, step) for k, v in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def ended(self, outcome: str, values: Mapping[str, float]) -> None:
        if not self._run:
            return
        for name, value in values.items():
            self._client.log_metric(self._run, name, value)
        self._client.set_terminated(self._run, _STATUS[outcome])
        self._run = ""

    def where(self) -> str:
        return f"mlflow ui --backend-store-uri {self.uri}"
