// The test scenario of generated clients, for the Go client of openapi-generator.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	api "sluice/generated"
)

// must returns the result of a call, and panics if the call failed.
func must[T any](found T, _ any, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

func expect(condition bool, message string) {
	if !condition {
		panic(message)
	}
}

func request(key string) api.ExportRequest {
	items := api.NewExportByItems("things", []api.ExportItem{*api.NewExportItem(key, "2024-02-29")})
	items.SetDelivery(api.REQUESTEDDELIVERY_SINGLE)
	return api.ExportByItemsAsExportRequest(items)
}

func main() {
	configuration := api.NewConfiguration()
	configuration.Servers = api.ServerConfigurations{{URL: os.Getenv("SLUICE_URL")}}
	client := api.NewAPIClient(configuration)
	ctx := context.WithValue(context.Background(), api.ContextAccessToken, os.Getenv("SLUICE_TOKEN"))

	accepted := must(client.ExportsAPI.CreateExport(ctx).ExportRequest(request("JFK")).Execute())
	job := must(client.ExportsAPI.GetExport(ctx, accepted.JobId).Execute())
	for job.Status != api.JOBSTATUS_SUCCESS && job.Status != api.JOBSTATUS_FAILED {
		time.Sleep(200 * time.Millisecond)
		job = must(client.ExportsAPI.GetExport(ctx, accepted.JobId).Execute())
	}
	receipt := job.GetReceipt()
	link, err := url.Parse(receipt.GetSignedUrl())
	expect(err == nil, "the link")
	file := must(client.DownloadsAPI.Download(ctx, accepted.JobId).Token(link.Query().Get("token")).Execute())
	content, err := io.ReadAll(file)
	expect(err == nil && fmt.Sprintf("sha256:%x", sha256.Sum256(content)) == receipt.Checksum, "the checksum")

	document, err := os.Open(os.Args[1])
	expect(err == nil, "the document")
	task := must(client.DocumentsAPI.SubmitDocument(ctx).File(document).Execute())
	end := must(client.DocumentsAPI.GetTask(ctx, task.TaskId).Execute())
	for end.Status != api.TASKSTATUS_COMPLETED && end.Status != api.TASKSTATUS_FAILED {
		time.Sleep(200 * time.Millisecond)
		end = must(client.DocumentsAPI.GetTask(ctx, task.TaskId).Execute())
	}
	expect(end.Status == api.TASKSTATUS_COMPLETED, "the document's status")
	expect(strings.Contains(must(client.DocumentsAPI.GetMarkdown(ctx, task.TaskId).Execute()), "Total: 118.50"), "the text")

	wanted := *api.NewNewWebhookRequest("http://127.0.0.1:9/hook", []api.WebhookEvent{api.WEBHOOKEVENT_EXPORT_SUCCEEDED})
	hook := must(client.WebhooksAPI.CreateWebhook(ctx).NewWebhookRequest(wanted).Execute())
	expect(strings.HasPrefix(hook.Secret, "whsec_"), "the secret")
	_, err = client.WebhooksAPI.DeleteWebhook(ctx, hook.Id).Execute()
	expect(err == nil, "the deleted webhook")

	_, _, err = client.ExportsAPI.CreateExport(ctx).ExportRequest(request("..")).Execute()
	var refused *api.GenericOpenAPIError
	expect(errors.As(err, &refused), "the refusal")
	problem, ok := refused.Model().(api.Problem)
	expect(ok && problem.Status == 400 && problem.Code == "invalid" && problem.Errors[0].Pointer == "/items/0/key", "the problem")
	fmt.Println("done")
}
