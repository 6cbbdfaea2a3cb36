from etl.models.task import Task

__all__ = ["Task"]
