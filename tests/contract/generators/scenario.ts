/** The test scenario of generated clients. Each program implements `Operations` with its client. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";

export const url = process.env.SLUICE_URL!;
export const token = process.env.SLUICE_TOKEN!;

interface Receipt {
  signedUrl: string | null;
  checksum: string;
}

export interface Operations {
  createExport(key: string): Promise<{ jobId: string }>;
  getExport(jobId: string): Promise<{ status: string; receipt: Receipt | null }>;
  download(jobId: string, token: string): Promise<ArrayBuffer>;
  submitDocument(file: File): Promise<{ task_id: number }>;
  getTask(taskId: number): Promise<{ status: string }>;
  getMarkdown(taskId: number): Promise<string>;
  createWebhook(url: string): Promise<{ id: string; secret: string }>;
  deleteWebhook(id: string): Promise<void>;
  /** Create an export with an invalid key, and return the problem. */
  refused(key: string): Promise<{ status: number; code: string; errors?: { pointer: string }[] }>;
}

async function poll<T extends { status: string }>(get: () => Promise<T>, finalStatuses: string[]): Promise<T> {
  for (;;) {
    const found = await get();
    if (finalStatuses.includes(found.status)) return found;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

export async function play(operations: Operations): Promise<void> {
  const { jobId } = await operations.createExport("JFK");
  const { receipt } = await poll(() => operations.getExport(jobId), ["success", "failed"]);
  assert(receipt?.signedUrl);
  const link = new URL(receipt.signedUrl).searchParams.get("token")!;
  const digest = createHash("sha256").update(Buffer.from(await operations.download(jobId, link))).digest("hex");
  assert.equal(`sha256:${digest}`, receipt.checksum);

  const { task_id } = await operations.submitDocument(new File(["Total: 118.50\n"], "invoice.txt", { type: "text/plain" }));
  assert.equal((await poll(() => operations.getTask(task_id), ["completed", "failed"])).status, "completed");
  assert.match(await operations.getMarkdown(task_id), /Total: 118\.50/);

  const hook = await operations.createWebhook("http://127.0.0.1:9/hook");
  assert.match(hook.secret, /^whsec_/);
  await operations.deleteWebhook(hook.id);

  const problem = await operations.refused("..");
  assert.deepEqual([problem.status, problem.code, problem.errors?.[0]?.pointer], [400, "invalid", "/items/0/key"]);
  console.log("done");
}
