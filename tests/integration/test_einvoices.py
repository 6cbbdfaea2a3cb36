"""E-invoices: recognition in the sandbox, tasks, the API, pages, and the admin. B41."""

import re
import sys
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.test import APIClient

from config.platform import exact_json, storage
from etl.core.formats import DocumentFormat, sniff
from etl.core.stage_context import StageContext
from etl.core.states import Stage, Status
from etl.models import Task
from etl.pipeline import engines
from etl.providers.base import Document, EInvoice
from etl.providers.local import LocalProvider
from etl.providers.local.einvoices import unreadable
from exports.models import Dataset, Job
from exports.worker import completion
from exports.worker import execution as exports_worker
from rules.loading import system_rules
from rules.models import Rule
from tests import samples
from tests.conftest import browser_of
from tests.integration.etl_factories import make_rule, make_task
from tests.integration.llm_factories import running_models
from tests.integration.openai_server import data_reply
from tests.integration.stage_runs import ConfigureStages, row_of, run, seen
from tests.samples import Maker
from tests.samples.make import INVOICE, printed

XML = samples.sample("einvoice.xml").read_bytes()
PDF = samples.sample("einvoice.pdf").read_bytes()
UBL = (Path(samples.__file__).parent / "einvoices/xrechnung-testsuite/01.01a-INVOICE_ubl.xml").read_bytes()
DEEP = XML.replace(b"</ram:Content>", b"<a>" * 10_000 + b"</a>" * 10_000 + b"</ram:Content>")
ENTITIES = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>' + XML.partition(b"?>")[2]
OUTSIDE = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + XML.partition(b"?>")[2].replace(
    b"30 days", b"&a;"
)


def pdf_of(**attached: bytes) -> bytes:
    """Return the invoice as a PDF with these attachments. In names, `_` stands for a dot."""
    return printed(INVOICE, attached={name.replace("_", "."): content for name, content in attached.items()})


def utf_16(xml: bytes) -> bytes:
    return xml.decode().replace("UTF-8", "UTF-16", 1).encode("utf-16")


def find_einvoice(provider: LocalProvider, document: Document) -> tuple[EInvoice | None, list[tuple[str, str]]]:
    context = StageContext(seconds=60)
    found = provider.find_einvoice(document, context=context)
    return found, [(warning.code, warning.detail) for warning in context.warnings]


# ---- Recognition, in the sandbox ------------------------------------------------------------------------------------
def test_a_pdf_and_its_xml_give_the_same_invoice_with_the_digits_of_the_xml(
    provider: LocalProvider, make_document: Maker
) -> None:
    """B41"""
    by_pdf, warnings = find_einvoice(provider, make_document(PDF, DocumentFormat.PDF))
    by_xml, _ = find_einvoice(provider, make_document(XML, DocumentFormat.XML))
    assert warnings == []
    assert by_pdf == by_xml
    assert by_pdf is not None
    assert (by_pdf.syntax, by_pdf.profile, by_pdf.errors) == ("cii", "EN 16931", ())
    data = by_pdf.data
    assert exact_json.dumps(data["totals"]) == b'{"net":1986.20,"tax":377.38,"gross":2363.58,"due":2363.58}'
    assert exact_json.dumps(data["lines"][2]) == (
        b'{"id":"3","name":"Assembly on site, hours","quantity":16,"unit":"HUR","net_price":62.50,"net_amount":1000.00,'
        b'"vat_rate":19.00}'
    )
    assert data["seller"]["address"] == {
        "street": "12 Sample Street",
        "city": "Exampleton",
        "postcode": "EX1 2AB",
        "country": "IE",
    }
    # Fields that the XML does not have are left out.
    assert data["payment"] == {"due_date": "2024-03-30", "terms": "30 days net"}


@pytest.mark.parametrize(
    "name", ["factur-x.xml", "ZUGFeRD-invoice.xml", "zugferd-invoice.xml", "xrechnung.xml", "any.xml"]
)
def test_attachments_are_recognized_by_their_content(provider: LocalProvider, make_document: Maker, name: str) -> None:
    """B41: an attachment with any name is used if it is an invoice."""
    document = make_document(printed(INVOICE, attached={"note.xml": b"<note/>", name: XML}), DocumentFormat.PDF)
    found, warnings = find_einvoice(provider, document)
    assert found is not None
    assert found.data["number"] == "EX-2024-0117"
    assert warnings == []


@pytest.mark.parametrize("content", [utf_16(XML), utf_16(UBL), b"\xef\xbb\xbf" + XML], ids=["cii", "ubl", "mark"])
def test_xml_is_read_in_any_encoding(provider: LocalProvider, make_document: Maker, content: bytes) -> None:
    """B41"""
    assert sniff(content[:65_536], "a.bin") == DocumentFormat.XML
    found, warnings = find_einvoice(provider, make_document(content, DocumentFormat.XML))
    assert found is not None
    assert warnings == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pdf_of(xrechnung_xml=DEEP), "invalid_xml"),
        (pdf_of(xrechnung_xml=ENTITIES), "document_type"),
        (pdf_of(xrechnung_xml=OUTSIDE), "document_type"),
        (pdf_of(xrechnung_xml=XML, any_xml=b"<a/>", other_xml=XML), None),
        (pdf_of(xrechnung_xml=XML[:900]), "invalid_xml"),
        (pdf_of(xrechnung_xml=b"%PDF-1.7 not at all XML"), "invalid_xml"),
        (pdf_of(xrechnung_xml=b"<order/>"), "no_invoice"),
        (pdf_of(a_xml=XML, b_xml=XML.replace(b"2363.58", b"9363.58")), "several"),
    ],
    ids=["deep", "entities", "outside", "copies", "cut", "no XML", "no invoice", "two invoices"],
)
def test_broken_and_hostile_invoices_are_warnings(
    provider: LocalProvider, make_document: Maker, content: bytes, reason: str | None
) -> None:
    """B41: they cause a warning and never an error."""
    found, warnings = find_einvoice(provider, make_document(content, DocumentFormat.PDF))
    if reason is None:
        assert found is not None
        assert warnings == []
        return
    assert found is None
    detail = f"The e-invoice was not read. {unreadable.REASONS[reason]}"
    assert warnings == [("einvoice_unreadable", detail)]


@pytest.mark.parametrize("content", [DEEP, ENTITIES, OUTSIDE, XML[:-20]], ids=["deep", "entities", "outside", "cut"])
def test_an_unreadable_xml_file_is_read_as_text(provider: LocalProvider, make_document: Maker, content: bytes) -> None:
    """B41"""
    document = make_document(content, DocumentFormat.XML)
    found, warnings = find_einvoice(provider, document)
    assert found is None
    assert [code for code, _ in warnings] == ["einvoice_unreadable"]
    assert "EX-2024-0117" in provider.convert(document, context=StageContext(seconds=60)).markdown


@pytest.mark.slow
def test_a_decompression_bomb_and_a_crashed_process_are_warnings(
    provider: LocalProvider, make_document: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B41: the attachment expands to 200 MB. The second time, that exceeds the memory limit, and the process crashes.
    The next document is read."""
    bomb = make_document(pdf_of(xrechnung_xml=b"<!-- " + b" " * 200 * 1024**2 + b" -->"), DocumentFormat.PDF)
    for reason in ("too_large", "crashed"):
        found, warnings = find_einvoice(provider, bomb)
        assert found is None
        assert warnings == [("einvoice_unreadable", f"The e-invoice was not read. {unreadable.REASONS[reason]}")]
        monkeypatch.setattr("etl.providers.local.process.MAX_MEMORY", 64 * 1024**2)
    monkeypatch.undo()
    assert find_einvoice(provider, make_document(PDF, DocumentFormat.PDF))[0] is not None


@pytest.mark.parametrize(
    "content",
    [printed(INVOICE), pdf_of(note_txt=XML), b"%PDF-1.7 damaged"],
    ids=["none", "no XML by its name", "damaged"],
)
def test_other_pdfs_have_no_invoice_and_no_warning(
    provider: LocalProvider, make_document: Maker, content: bytes
) -> None:
    """B41: a damaged PDF fails later, when the document is read."""
    assert find_einvoice(provider, make_document(content, DocumentFormat.PDF)) == (None, [])


def test_an_unknown_profile_is_an_error_of_the_invoice_and_its_data_is_read(
    provider: LocalProvider, make_document: Maker
) -> None:
    """B41"""
    content = XML.replace(b"urn:cen.eu:en16931:2017", b"urn:factur-x.eu:1p0:gold")
    found, warnings = find_einvoice(provider, make_document(content, DocumentFormat.XML))
    assert found is not None
    assert found.profile == "urn:factur-x.eu:1p0:gold"
    assert [error["code"] for error in found.errors] == ["profile"]
    assert found.summary()["valid"] is False
    assert warnings == []


# ---- Tasks ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def local(settings: LazySettings, configure_stages: ConfigureStages) -> ConfigureStages:
    """The local provider, and the real post-processors without a model."""
    configure_stages(etl_ocr_provider="local", etl_llm_base_url=None, etl_llm_model="")
    settings.ETL_POSTPROCESSORS = {**settings.ETL_POSTPROCESSORS, "llm": "etl.postprocessors.llm.Llm"}
    return configure_stages


@pytest.fixture
def rule(transactional_db: None) -> Rule:
    system_rules.load_all()
    return Rule.objects.get(slug="einvoice")


def task_of(user: User, content: bytes, kind: str, rule: Rule) -> Task:
    return make_task(user, rule=rule, content=content, kind=kind, filename=f"invoice.{kind}")


def codes(task: Task) -> list[str]:
    return [warning["code"] for warning in seen(task).metadata["warnings"]]


@pytest.mark.parametrize(("content", "kind"), [(PDF, "pdf"), (XML, "xml")], ids=["pdf", "xml"])
def test_a_task_has_the_invoice_without_a_model(
    api: APIClient, alice: User, local: ConfigureStages, rule: Rule, *, content: bytes, kind: str
) -> None:
    """B41, B43: the API returns the numbers exactly as the XML has them."""
    task = task_of(alice, content, kind, rule)
    assert run(task) == [True, True]
    response = api.get(f"/api/v1/etl/tasks/{task.pk}")
    body = response.json()
    assert body["status"] == "completed"
    assert body["einvoice"] == {"syntax": "cii", "profile": "EN 16931", "valid": True, "errors": []}
    assert body["metadata"]["postprocess"]["source"] == "einvoice"
    assert body["metadata"]["postprocess"]["usage"]["calls"] == 0
    assert body["metadata"]["warnings"] == []
    assert "einvoice" not in body["metadata"]["ocr"]
    assert b'"totals":{"net":1986.20,"tax":377.38,"gross":2363.58,"due":2363.58}' in response.content
    assert row_of(task).metadata["ocr"]["einvoice"]["profile"] == "EN 16931"
    markdown = b"".join(api.get(f"/api/v1/etl/tasks/{task.pk}/markdown").streaming_content)  # type: ignore[attr-defined]
    assert b"Steel brackets, 40 mm" in markdown


def test_an_invoice_is_found_with_any_provider(
    monkeypatch: pytest.MonkeyPatch, alice: User, configure_stages: ConfigureStages, rule: Rule
) -> None:
    """B41: only a worker without the packages of the local provider finds no invoice."""
    task = task_of(alice, XML, "xml", rule)
    assert run(task, Stage.OCR) == [True]
    assert seen(task).metadata["ocr"]["einvoice"]["profile"] == "EN 16931"
    assert engines.reader(DocumentFormat.XML) is engines.local()  # other providers do not accept XML
    assert DocumentFormat.XML in engines.formats()
    monkeypatch.setitem(sys.modules, "facturx", None)
    without = task_of(alice, XML, "xml", rule)
    assert run(without, Stage.OCR) == [True]
    assert "einvoice" not in seen(without).metadata["ocr"]


def test_the_markdown_of_xml_is_a_readable_invoice(provider: LocalProvider, make_document: Maker) -> None:
    """B41: HTML in the invoice is escaped."""
    content = XML.replace(b"Copper cable", b"&lt;b>| Copper cable")
    document = make_document(content, DocumentFormat.XML)
    found, _ = find_einvoice(provider, document)
    markdown = provider.convert(replace(document, einvoice=found), context=StageContext(seconds=60)).markdown
    assert "# Invoice EX-2024-0117" in markdown
    assert "| 2 | &lt;b&gt;\\| Copper cable, per metre | 250 | MTR | 1.84 | 19.00 | 460.00 |" in markdown
    assert "| Amount due | 2363.58 |" in markdown


@pytest.mark.slow
def test_a_broken_rule_and_a_page_that_differs_are_warnings(alice: User, local: ConfigureStages, rule: Rule) -> None:
    """B41: warnings have the number of the broken rule of EN 16931 and both amounts, whichever rule the task uses."""
    content = pdf_of(xrechnung_xml=XML.replace(b"<ram:DuePayableAmount>2363.58", b"<ram:DuePayableAmount>2463.58"))
    for used in (rule, make_rule(alice)):
        task = task_of(alice, content, "pdf", used)
        assert run(task) == [True, True]
        details = {each["code"]: each["detail"] for each in seen(task).metadata["warnings"]}
        assert details == {
            "einvoice_rule": "BR-CO-16: The amount due (BT-115) is 2463.58; the sum of its parts is 2363.58.",
            "einvoice_differs": "The e-invoice has the amount due 2463.58, which the pages do not show.",
        }


@pytest.mark.slow
def test_an_iban_that_differs_from_the_page_is_a_warning(alice: User, local: ConfigureStages, rule: Rule) -> None:
    """B41"""
    means = (
        b"<ram:SpecifiedTradeSettlementPaymentMeans><ram:TypeCode>58</ram:TypeCode>"
        b"<ram:PayeePartyCreditorFinancialAccount><ram:IBANID>DE02120300000000202051</ram:IBANID>"
        b"</ram:PayeePartyCreditorFinancialAccount></ram:SpecifiedTradeSettlementPaymentMeans><ram:ApplicableTradeTax>\n"
        b"        <ram:CalculatedAmount>"
    )
    xml = XML.replace(b"<ram:ApplicableTradeTax>\n        <ram:CalculatedAmount>", means)
    with_iban = [[*INVOICE[0], ("p", "IBAN: DE02 1203 0000 0000 2020 51")], *INVOICE[1:]]
    for pages, expected in ((with_iban, []), (INVOICE, ["einvoice_differs"])):
        task = task_of(alice, printed(pages, attached={"factur-x.xml": xml}), "pdf", rule)
        assert run(task) == [True, True]
        assert codes(task) == expected


def test_without_an_invoice_and_a_model_the_task_fails(alice: User, local: ConfigureStages, rule: Rule) -> None:
    """B41"""
    task = task_of(alice, printed(INVOICE), "pdf", rule)
    run(task)
    row = row_of(task)
    assert row.status == Status.FAILED
    assert row.error is not None
    assert (row.error["code"], row.error["retryable"]) == ("no_einvoice", False)


@pytest.mark.slow
def test_without_an_invoice_the_model_fills_the_same_schema(
    settings: LazySettings, alice: User, local: ConfigureStages, rule: Rule
) -> None:
    """B41: fields that the model does not find are left out."""
    answer: dict[str, Any] = {
        "number": "EX-2024-0117",
        "issue_date": "2024-02-29",
        "seller": {"name": "Example Trading Ltd", "vat_id": None, "address": None},
        "buyer": None,
        "lines": [{"name": "Packaging and freight", "net_amount": 148.20, "unit": None}],
        "taxes": [],
        "totals": {"gross": 2363.58, "prepaid": None},
        "notes": [],
    }
    with running_models(settings) as models:
        models.set_default(data_reply(answer))
        task = task_of(alice, printed(INVOICE), "pdf", rule)
        assert run(task) == [True, True]
    state = seen(task)
    assert state.metadata["postprocess"]["source"] == "model"
    assert state.result is not None
    data = state.result["data"]
    assert data["seller"] == {"name": "Example Trading Ltd"}
    assert "buyer" not in data
    assert set(data["lines"][0]) == {"name", "net_amount"}
    assert set(data["totals"]) == {"gross"}


@pytest.mark.slow
def test_a_retry_of_the_extraction_reads_the_stored_invoice(
    api: APIClient, alice: User, local: ConfigureStages, rule: Rule
) -> None:
    """B41: the document is not read again."""
    task = task_of(alice, PDF, "pdf", make_rule(alice))
    run(task)
    response = api.post(f"/api/v1/etl/tasks/{task.pk}/retry", {"from_stage": "postprocess", "rule_id": rule.pk})
    assert response.status_code in {200, 202}, response.content
    assert run(row_of(task), Stage.POSTPROCESS) == [True]
    body = api.get(f"/api/v1/etl/tasks/{task.pk}").json()
    assert body["result"]["data"]["number"] == "EX-2024-0117"
    assert body["einvoice"]["profile"] == "EN 16931"


def test_an_xml_file_is_accepted_under_any_name(api: APIClient, alice: User, local: ConfigureStages) -> None:
    """B41"""
    file = BytesIO(XML)
    file.name = "invoice.dat"
    response = api.post("/api/v1/etl/submit", {"file": file}, format="multipart")
    assert response.status_code == 202, response.content
    assert Task.objects.get(pk=response.json()["task_id"]).kind == "xml"


@pytest.mark.slow
def test_a_folder_of_mixed_invoices_becomes_one_parquet_file_with_one_schema(
    api: APIClient, settings: LazySettings, alice: User, local: ConfigureStages, rule: Rule
) -> None:
    """B41, B36, A36: a PDF with XML, an XML file, and an invoice that the model reads. The file has one row for each
    invoice, or one row for each invoice line.
    """
    parquet = pytest.importorskip("pyarrow.parquet")
    answer = {
        "number": "P-1", "issue_date": "2026-03-01", "lines": [{"name": "Lamp", "net_amount": 3.1}],
        "taxes": [], "totals": {"gross": 119.00}, "notes": [],
    }  # fmt: skip
    files = {"a.pdf": PDF, "b.xml": UBL, "c.pdf": printed(INVOICE)}
    body = {"file": [named(name, content) for name, content in files.items()], "rule_id": rule.pk}
    batch = api.post("/api/v1/etl/batches", body, format="multipart").json()
    with running_models(settings) as models:
        models.set_default(data_reply(answer))
        for task in Task.objects.filter(batch_id=batch["batch_id"]):
            assert run(task) == [True, True]

    def rows(query: str) -> Any:
        response = api.get(f"/api/v1/etl/batches/{batch['batch_id']}/results?format=parquet{query}")
        return parquet.read_table(BytesIO(b"".join(response.streaming_content))).to_pylist()  # type: ignore[attr-defined]

    by_file = {row["filename"]: row for row in rows("")}
    assert {name: row["number"] for name, row in by_file.items()} == {
        "a.pdf": "EX-2024-0117", "b.xml": "123456XX", "c.pdf": "P-1",
    }  # fmt: skip
    assert len({tuple(row) for row in by_file.values()}) == 1
    assert by_file["a.pdf"]["totals"] == '{"net":1986.20,"tax":377.38,"gross":2363.58,"due":2363.58}'
    lines = [(row["filename"], row["name"], row["net_amount"]) for row in rows("&rows=/lines")]
    assert ("a.pdf", "Steel brackets, 40 mm", Decimal("378.00")) in lines
    assert ("b.xml", "Zeitschrift [...]", Decimal("288.79")) in lines
    assert ("c.pdf", "Lamp", Decimal("3.10")) in lines

    Dataset.objects.provide_built_in()
    export = {"dataset": "documents", "filters": {"batchId": batch["batch_id"]}, "format": "parquet"}
    job = Job.objects.get(pk=api.post("/exports", export).json()["jobId"])
    exports_worker.drain()
    completion.complete(job.pk)
    job.refresh_from_db()
    table = parquet.read_table(BytesIO(b"".join(storage.read(job.receipt.object_key))))
    assert {row["filename"]: row["totals"] for row in table.to_pylist()} == {
        name: row["totals"] for name, row in by_file.items()
    }


def named(name: str, content: bytes) -> BytesIO:
    file = BytesIO(content)
    file.name = name
    return file


# ---- Pages and admin ------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_page_shows_the_invoice_and_its_source(alice: User, local: ConfigureStages, rule: Rule) -> None:
    """B41"""
    task = task_of(alice, PDF, "pdf", rule)
    run(task)
    client = browser_of(alice)
    page = client.get(f"/app/documents/{task.pk}").content.decode()
    assert "From the e-invoice" in page
    assert "By the model" not in page
    assert "<caption>Lines" in page
    assert re.search(r"<td>Steel brackets, 40 mm</td>.*?<td class=\"number\">378.00</td>", page, re.DOTALL)
    assert "E-invoice CII EN 16931" in page
    tree = client.get(f"/app/documents/{task.pk}?json=tree").content.decode()
    assert "net_amount" in tree
    assert "no source" not in tree
    assert "<caption>Lines" not in tree


def test_the_admin_shows_codes_only(admin_client: Client, alice: User, local: ConfigureStages, rule: Rule) -> None:
    """B41, B8"""
    content = XML.replace(b"<ram:DuePayableAmount>2363.58", b"<ram:DuePayableAmount>2463.58")
    task = task_of(alice, content, "xml", rule)
    run(task)
    page = admin_client.get(f"/admin/etl/task/{task.pk}/change/").content.decode()
    assert "BR-CO-16" in page
    assert "EN 16931" in page
    assert "2463.58" not in page
