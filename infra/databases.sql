-- Run once, by a Postgres server whose data folder is empty. Prefect's own database is POSTGRES_DB.
CREATE DATABASE mlflow;
