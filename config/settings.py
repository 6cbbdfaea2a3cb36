"""Django settings. Everything that differs between machines comes from `config.env`."""

import logging
from datetime import timedelta
from pathlib import Path

from csp.constants import NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.templatetags.static import static
from django.urls import reverse_lazy
from psycopg.conninfo import conninfo_to_dict

from config import env as environment
from config.platform import broker
from config.platform.db.base import pool_of
from config.platform.http.openapi.overview import OVERVIEW
from config.platform.observability import counters, logs

BASE_DIR = Path(__file__).resolve().parent.parent
env = environment.read()

SECRET_KEY = env.secret_key.get_secret_value()
SECRET_KEY_FALLBACKS = [key.get_secret_value() for key in env.secret_key_fallbacks]
DEBUG = env.debug
ALLOWED_HOSTS = env.allowed_hosts
CSRF_TRUSTED_ORIGINS = env.csrf_trusted_origins

INSTALLED_APPS = [
    "django_prometheus",
    "unfold",
    "django.contrib.admin.apps.SimpleAdminConfig",  # config.urls loads the admin, for web processes only
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_structlog",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "django_htmx",
    "csp",
    "config.platform",
    "config.platform.ui",
    "config.ops",
    "rules",
    "exports",
    "etl",
]

MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    *(["config.platform.http.trace_middleware.middleware"] if env.tracing else []),
    "config.platform.http.request_context.RequestMiddleware",
    # These three only add headers. They come first, so that the responses of ProblemMiddleware have them too.
    "django.middleware.security.SecurityMiddleware",
    "config.platform.ui.security.ContentSecurityPolicy",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "config.platform.http.error_handling.ProblemMiddleware",
    "config.platform.http.responses.middleware",
    "config.platform.http.large_bodies.middleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "config.platform.ui.sign_in.Authentication",
    "django.contrib.messages.middleware.MessageMiddleware",
    "config.platform.http.audit.middleware",  # after the authentication
    "config.platform.http.roles.ReadOnlyAuditorMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

ROOT_URLCONF = "config.urls"
APPEND_SLASH = False  # paths of the public API have no trailing slash; those of the admin include one

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "config.platform.ui.base.role",
            ],
        },
    },
]


def database(url: str) -> dict[str, object]:
    """Return Django's entry for a Postgres URL or conninfo string, with a connection pool.

    Under ASGI, each request runs in a separate thread, and persistent connections are per thread. The pool limits their
    number.
    """
    parts = conninfo_to_dict(url)
    return {
        "ENGINE": "config.platform.db",
        "NAME": parts.pop("dbname", ""),
        "USER": parts.pop("user", ""),
        "PASSWORD": parts.pop("password", ""),
        "HOST": parts.pop("host", ""),
        "PORT": parts.pop("port", ""),
        "OPTIONS": {"fallback_application_name": "sluice", **parts, "pool": pool_of(env.database_pool_size)},
        # Behind a transaction pooler, a server-side cursor does not outlive its transaction.
        "DISABLE_SERVER_SIDE_CURSORS": not env.database_prepare,
    }


DATABASES = {"default": database(env.database_url.get_secret_value())}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Datasets that need no function of the source database: subclasses of config.platform.built_in_datasets.BuiltInDataset.
BUILT_IN_DATASETS = ["etl.api.results_dataset.ResultsDataset"]

STORAGES = {
    # Django's default file storage, which no model uses. Exports and documents use config.platform.storage.
    "default": {
        "BACKEND": "storages.backends.s3.S3Storage",
        "OPTIONS": {
            "bucket_name": env.s3_bucket,
            "endpoint_url": str(env.s3_endpoint_url) if env.s3_endpoint_url else None,
            "region_name": env.s3_region,
            "access_key": env.s3_access_key_id.get_secret_value(),
            "secret_key": env.s3_secret_access_key.get_secret_value(),
        },
    },
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
] + [{"NAME": "config.platform.http.tokens.RevokedWithPassword"}]
AUTHENTICATION_BACKENDS = ["config.platform.ui.sign_in.Backend"]
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "exports"
LOGOUT_REDIRECT_URL = "home"

TIME_ZONE = "UTC"
USE_I18N = False

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / ".local" / "static"
WHITENOISE_USE_FINDERS = not STATIC_ROOT.exists()  # in a checkout, `collectstatic` has not run

SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.trusted_proxy_cidrs else None
# The proxy that terminates TLS is responsible for redirects to HTTPS and for HSTS.
SILENCED_SYSTEM_CHECKS = ["security.W004", "security.W008"]
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not DEBUG
SESSION_COOKIE_HTTPONLY = True
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}
LOOSER_POLICIES = {
    # Unfold uses Alpine, which evaluates attributes, and has its colors in an inline style.
    "/admin/": {"script-src": [SELF, UNSAFE_EVAL], "style-src": [SELF, UNSAFE_INLINE]},
}
CSRF_FAILURE_VIEW = "config.platform.http.error_handling.csrf_failure"

DATA_UPLOAD_MAX_NUMBER_FILES = env.etl_max_batch + 1  # paths that accept a single file have a separate limit
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1024 * 1024  # bytes of a JSON or form body of any path; uploaded files do not count
DATA_UPLOAD_MAX_NUMBER_FIELDS = 5_000  # the form of a result has a field for each value, including missing ones
# Maximum sizes of bodies, by path. Larger ones are refused before they are read. A form encodes most punctuation of
# JSON as three characters.
BODY_LIMIT = 64 * 1024  # of most paths; larger bodies are processed one at a time
BODY_LIMITS = {
    r"/exports(/preview)?": DATA_UPLOAD_MAX_MEMORY_SIZE,
    r"/app/exports/new(/preview)?": DATA_UPLOAD_MAX_MEMORY_SIZE,
    # A file key and its quotes have less than 256 bytes.
    r"/api/v1/etl/batches(/uploaded)?": 64 * 1024 + 256 * env.etl_max_batch,
    r"/api/v1/etl/rules(/\d+)?": 256 * 1024,
    r"/app/rules/(new|check|fields|\d+)": 1024 * 1024,
    r"/api/v1/etl/rules/\d+/samples(/task)?|/app/rules/\d+/samples": 1024 * 1024,  # expected data
    # A million characters of Markdown.
    r"/api/v1/etl/rules/\d+/test|/app/rules/(try|suggest)": DATA_UPLOAD_MAX_MEMORY_SIZE,
    r"/api/v1/etl/tasks/\d+/result|/app/documents/\d+/edit": DATA_UPLOAD_MAX_MEMORY_SIZE,  # corrected data
    r"/admin/.*": 256 * 1024,
}
PAGE_PREFIXES = ("/admin/", "/app/")  # errors are HTML under these paths, and problem+json everywhere else


def page(title: str, icon: str, model: str) -> dict[str, object]:
    """Return a sidebar entry, such as `page("Exports", "output", "exports.job")`. It requires the view permission."""
    app, name = model.split(".")
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app}_{name}_changelist"),
        "permission": lambda request: request.user.has_perm(f"{app}.view_{name}"),
    }


UNFOLD = {
    "SITE_TITLE": "Sluice",
    "SITE_HEADER": "Sluice",
    "SITE_SYMBOL": "water",
    "SITE_FAVICONS": [{"rel": "icon", "href": lambda _request: static("config/icon.svg")}],
    "STYLES": [lambda _request: static("config/admin.css")],
    "DASHBOARD_CALLBACK": "config.platform.admin.overview.context",
    "SHOW_VIEW_ON_SITE": False,
    "SIDEBAR": {
        "navigation": [
            {"items": [{"title": "Overview", "icon": "monitoring", "link": reverse_lazy("admin:index")}]},
            {
                "title": "Exports",
                "items": [
                    page("Exports", "output", "exports.job"),
                    page("Chunks", "grid_view", "exports.chunk"),
                    page("Files", "draft", "exports.file"),
                    page("Receipts", "receipt_long", "exports.receipt"),
                    page("Links", "link", "exports.link"),
                    page("Downloads", "download", "exports.download"),
                    page("Schedules", "event_repeat", "exports.schedule"),
                    page("Webhooks", "webhook", "exports.webhook"),
                    page("Webhook deliveries", "outgoing_mail", "exports.delivery"),
                    page("Datasets", "database", "exports.dataset"),
                    page("Usage", "data_usage", "exports.usage"),
                    page("Quota overrides", "tune", "exports.allowance"),
                    page("Source calls", "memory", "exports.slot"),
                    page("Periodic tasks", "schedule", "exports.tick"),
                ],
            },
            {
                "title": "Documents",
                "items": [
                    page("Documents", "description", "etl.task"),
                    page("Batches", "folder_zip", "etl.documentbatch"),
                    page("Rules", "rule", "rules.rule"),
                    page("Usage", "data_usage", "etl.usage"),
                    page("Quota overrides", "tune", "etl.allowance"),
                    page("Token budgets of rules", "toll", "etl.ruleallowance"),
                ],
            },
            {
                "title": "Accounts",
                "items": [
                    page("Users", "person", "auth.user"),
                    page("Groups", "group", "auth.group"),
                    page("API tokens", "key", "knox.authtoken"),
                    page("Audit log", "policy", "platform.auditentry"),
                    page("Change history", "history", "admin.logentry"),
                ],
            },
        ],
    },
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "config.platform.http.auth.BearerAuthentication",
        "config.platform.http.auth.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": [
        "rest_framework.permissions.IsAuthenticated",
        "config.platform.http.scopes.HasScope",
        "config.platform.http.roles.DenyAuditorChanges",
        "config.platform.http.query_parameters.KnownParameters",
    ],
    "DEFAULT_THROTTLE_CLASSES": ["exports.api.rates.ExportThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["config.platform.http.parsers.JSONParser"],
    "DEFAULT_PAGINATION_CLASS": "config.platform.http.paging.NewestFirst",
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "config.platform.http.negotiation.AcceptProblems",
    "DEFAULT_SCHEMA_CLASS": "config.platform.http.openapi.autoschema.Schema",
    "DEFAULT_METADATA_CLASS": "config.platform.http.negotiation.AllowOnly",
    "EXCEPTION_HANDLER": "config.platform.http.error_handling.handle",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
    "URL_FORMAT_OVERRIDE": None,  # DRF's `?format=` would make every list a 404, and `format` is a field of the API
}
REST_KNOX = {
    "SECURE_HASH_ALGORITHM": "hashlib.sha512",
    "AUTH_HEADER_PREFIX": "Bearer",
    "TOKEN_PREFIX": "slc_",
    "TOKEN_TTL": timedelta(days=90),
    "TOKEN_LIMIT_PER_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Sluice",
    "DESCRIPTION": OVERVIEW,
    "VERSION": "0.1.0",
    "OAS_VERSION": "3.1.0",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "CONTACT": {"name": "The operator of this server"},
    "LICENSE": {"name": "All rights reserved", "identifier": "LicenseRef-All-Rights-Reserved"},
    "SERVERS": [{"url": "/", "description": "This server."}],
    "COMPONENT_SPLIT_REQUEST": True,
    "SORT_OPERATION_PARAMETERS": False,  # path parameters in the order of the path
    "TAGS": [
        {"name": "exports", "description": "Export jobs, their chunks, and their receipts."},
        {"name": "downloads", "description": "One-time download links, and the files of a manifest."},
        {"name": "schedules", "description": "Exports that recur at the times of a cron expression."},
        {
            "name": "webhooks",
            "description": "Notifications about finished exports and documents, as an alternative to polling. "
            "`/webhooks` is the same resource.",
        },
        # Not `webhooks`: generators that make a class for each tag would mix both, and leave out one.
        {"name": "events", "description": "Requests that Sluice sends to webhooks."},
        {"name": "documents", "description": "Conversion of documents to Markdown and JSON."},
        {
            "name": "rules",
            "description": "Versioned rules for the conversion to JSON: a schema, a prompt, and a strategy.",
        },
        {"name": "tokens", "description": "API tokens with scopes."},
        {"name": "operations", "description": "Health checks and metrics, for load balancers and Prometheus."},
    ],
    "PATH_CONVERTER_OVERRIDES": {
        "day": {"type": "string", "format": "date"},
        "int": {"type": "integer", "format": "int64", "minimum": 1, "maximum": 2**63 - 1},
    },
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,  # it would only repeat the values
    "ENUM_NAME_OVERRIDES": {
        "JobStatus": "exports.core.states.JobStatus",
        "ChunkStatus": "exports.core.states.ChunkStatus",
        "Format": "exports.models.dataset.FORMATS",
        "Compression": "exports.models.job.Compression",
        "Delivery": "exports.models.job.DeliveryKind",
        "RequestedDelivery": "exports.api.serializers.DELIVERIES",
        "Reuse": "exports.models.job.Reuse",
        "ChunkSource": "exports.core.states.Source",
        "ReceiptState": "exports.jobs.schemas.RECEIPT_STATES",
        "DeliveryType": "config.platform.webhooks.schemas.DELIVERY_TYPES",
        "ExportErrorCode": "exports.core.errors.EXPLANATIONS",
        "RunStatus": "exports.schedules.schemas.RUN_STATUSES",
        "Misfire": "exports.models.schedule.Misfire",
        "DatasetKind": "exports.models.dataset.Kind",
        "BuiltInDataset": "exports.models.dataset.BUILT_IN",
        "BuiltInFormat": "etl.api.results_dataset.FORMATS",
        "DocumentEvent": "etl.pipeline.schemas.EVENTS",
        "ExportEvent": "exports.jobs.schemas.EVENTS",
        "WebhookEvent": "config.platform.webhooks.models.EventType",
        "DeliveryStatus": "config.platform.webhooks.models.Delivery.Status",
        "TaskStatus": "etl.core.states.Status",
        "StoredTaskStatus": "etl.models.task.STORED",
        "BatchStatus": "etl.core.states.BatchStatus",
        "Stage": "etl.core.states.Stage",
        "TaskErrorCode": "etl.pipeline.schemas.ERROR_CODES",
    },
    "WEBHOOKS": [
        *(f"exports.api.openapi_webhooks.{name}" for name in ("SUCCEEDED", "FAILED", "CANCELLED")),
        *(f"etl.api.openapi_webhooks.{name}" for name in ("COMPLETED", "FAILED", "BATCH_COMPLETED")),
        "config.platform.webhooks.openapi.TEST",
    ],
    "PREPROCESSING_HOOKS": ["config.platform.webhooks.openapi.omit_alternative_paths"],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "exports.api.openapi_extensions.camel_case_parameters",
        "config.platform.webhooks.openapi.add_headers",
        "config.platform.http.openapi.autoschema.add_shared_components",
        "config.platform.http.openapi.client_generators.adapt",
    ],
}

LOGGING = logs.configuration(level=env.log_level, style=env.log_format)
logs.configure()
counters.configure()
DJANGO_STRUCTLOG_CELERY_ENABLED = True
DJANGO_STRUCTLOG_USER_ID_FIELD = None  # user IDs are personal data; the request ID is enough to find the user
DJANGO_STRUCTLOG_IP_LOGGING_ENABLED = False  # so are addresses, and django-structlog would trust any X-Forwarded-For
DJANGO_STRUCTLOG_TRUST_UPSTREAM_REQUEST_ID = True  # config.platform.http.request_context validates it first
DJANGO_STRUCTLOG_REQUEST_CANCELLED_LOG_LEVEL = logging.INFO  # clients may close their event streams at any time
DJANGO_STRUCTLOG_STATUS_START_LOG_LEVEL = logging.DEBUG  # one line per request, at its end
# One line per task, at its end. `task_enqueued` would also appear twice.
DJANGO_STRUCTLOG_CELERY_TASK_START_LOG_LEVEL = logging.DEBUG

# ---- Celery -----------------------------------------------------------------------------------------------------
# Measured with Celery 5.7 and Valkey. docs/adr/0003 explains which failure each setting prevents.
CELERY_BROKER_URL = env.broker_url
CELERY_BROKER_USE_SSL = broker.tls(env.broker_url)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# The visibility timeout exceeds the hard time limit of every task, so that no message of a running task is redelivered.
# Stages stop at ETL_TASK_TIMEOUT by themselves; the soft limit stops code that does not check the time.
ETL_SOFT_TIME_LIMIT = env.etl_task_timeout + 10
ETL_TIME_LIMIT = env.etl_task_timeout + 30
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": max(1800, 2 * ETL_TIME_LIMIT),
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_keepalive": True,
    "health_check_interval": 10,
    **broker.timeouts(5, connect=3, retries=2),
    "confirm_publish": True,  # RabbitMQ: a message counts as sent when it is stored
    "interval_start": 0,
    "interval_step": 0.2,
    "interval_max": 0.5,
}
CELERY_BROKER_HEARTBEAT = 30  # RabbitMQ: both sides detect within a minute that the other is gone
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 2, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 20
CELERY_WORKER_ENABLE_SOFT_SHUTDOWN_ON_IDLE = False  # an idle worker would sleep for the whole timeout
CELERY_TASK_SOFT_TIME_LIMIT = 600
CELERY_TASK_TIME_LIMIT = 660
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_CONSUMER = "config.platform.worker_consumer:Consumer"
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False  # it could stop consumption, and shut workers down
CELERY_TASK_DEFAULT_QUEUE = "maintenance"
# A worker without -Q consumes all of these queues.
ETL_QUEUES = {stage: f"{env.etl_arq_queue_name}-{stage}" for stage in ("ocr", "postprocess")}
CELERY_TASK_QUEUES = [
    broker.queue(name, url=env.broker_url)
    for name in ("exports", "bundles", "webhooks", "maintenance", *ETL_QUEUES.values())
]
CELERY_TASK_ROUTES = {
    "exports.run_chunks": {"queue": "exports"},
    "exports.reuse_files": {"queue": "exports"},
    "exports.complete_job": {"queue": "bundles"},
    "exports.deliver": {"queue": "webhooks"},
    "etl.ocr": {"queue": ETL_QUEUES["ocr"]},
    "etl.draw_pages": {"queue": ETL_QUEUES["ocr"]},
    "etl.postprocess": {"queue": ETL_QUEUES["postprocess"]},
    "etl.evaluate": {"queue": ETL_QUEUES["postprocess"]},
}
CELERY_TASK_ANNOTATIONS = {
    name: {"soft_time_limit": ETL_SOFT_TIME_LIMIT, "time_limit": ETL_TIME_LIMIT}
    for name in ("etl.ocr", "etl.draw_pages", "etl.postprocess", "etl.evaluate")
}
# A periodic task that waited longer than its interval is useless, because the next one does the same work. The expiry
# is at least an hour, because workers compare it with their clocks, which may differ by minutes. If messages pile up,
# `run_if_due` of exports.maintenance.periodic or `once` of etl.runstate lets only one of them do the work.
CELERY_BEAT_SCHEDULER = "config.scheduler.Scheduler"
CELERY_BEAT_SCHEDULE = {
    task: {"task": task, "schedule": seconds, "options": {"expires": max(seconds, 3600)}}
    for task, seconds in {
        "exports.reap": env.export_reaper_seconds,
        "exports.run_schedules": 15,
        "exports.sweep": 3600,
        "exports.purge": 86_400,
        "rules.load": 60,
        "etl.recover": env.etl_recovery_seconds,
        "etl.sweep": 3600,
    }.items()
}

# ---- Document ETL -----------------------------------------------------------------------------------------------
# Extension points: a new provider, post-processor, or strategy is a class with its dotted path here. ETL_OCR_PROVIDER
# names one of these providers, or the dotted path of an external one.
ETL_OCR_PROVIDERS = {
    "local": "etl.providers.local.LocalProvider",
    "mineru": "etl.providers.mineru.MinerUProvider",
}
ETL_POSTPROCESSORS = {
    "skip": "etl.postprocessors.skip.Skip",
    "llm": "etl.postprocessors.llm.Llm",
    "einvoice": "etl.postprocessors.einvoices.processor.EInvoices",
}
ETL_STRATEGIES = {
    "direct-json": "etl.postprocessors.strategies.direct.DirectJson",
    "chunked-summarize": "etl.postprocessors.strategies.summarize.ChunkedSummarize",
    "chunked-extract": "etl.postprocessors.strategies.extract.ChunkedExtract",
    "vision": "etl.postprocessors.strategies.vision.Vision",
}

# ---- Typed settings ---------------------------------------------------------------------------------------------
# Modules read, for example, `settings.SLUICE.export_lease_seconds`.
SLUICE = env
