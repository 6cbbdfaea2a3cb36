import createClient from "openapi-fetch";
import type { paths } from "./generated/openapi-typescript.js";
import { play, token, url } from "./scenario.js";

const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
const body = (key: string) => ({ dataset: "things", items: [{ key, effectiveDate: "2024-02-29" }], delivery: "single" as const });

/** Return the data of a response. */
function data<T>({ data, error }: { data?: T; error?: unknown }): T {
  if (data === undefined) throw new Error(JSON.stringify(error));
  return data;
}

await play({
  createExport: async (key) => data(await client.POST("/exports", { body: body(key) })),
  getExport: async (jobId) => data(await client.GET("/exports/{jobId}", { params: { path: { jobId } } })),
  download: async (jobId, token) =>
    data(await client.GET("/exports/{jobId}/download", { params: { path: { jobId }, query: { token } }, parseAs: "arrayBuffer" })),
  submitDocument: async (file) =>
    data(
      await client.POST("/api/v1/etl/submit", {
        body: { file: "" },
        bodySerializer: () => {
          const form = new FormData();
          form.append("file", file);
          return form;
        },
      }),
    ),
  getTask: async (task_id) => data(await client.GET("/api/v1/etl/tasks/{task_id}", { params: { path: { task_id } } })),
  getMarkdown: async (task_id) =>
    data(await client.GET("/api/v1/etl/tasks/{task_id}/markdown", { params: { path: { task_id } }, parseAs: "text" })),
  createWebhook: async (url) => data(await client.POST("/exports/webhooks", { body: { url, events: ["export.succeeded"] } })),
  deleteWebhook: async (webhookId) => {
    const { response } = await client.DELETE("/exports/webhooks/{webhookId}", { params: { path: { webhookId } } });
    if (response.status !== 204) throw new Error(`status ${response.status}`);
  },
  refused: async (key) => (await client.POST("/exports", { body: body(key) })).error!,
});
