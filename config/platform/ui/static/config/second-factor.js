"use strict";
// Security keys (WebAuthn). The button with `data-webauthn` requests a credential from the browser, and submits its form.

const button = document.querySelector("[data-webauthn]");
const problem = document.getElementById("webauthn-problem");

function fail(text) {
  problem.textContent = text;
  problem.hidden = false;
}

async function credential(kind) {
  const options = JSON.parse(document.getElementById("webauthn-options").textContent);
  return kind === "create"
    ? navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options) })
    : navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options) });
}

if (window.PublicKeyCredential?.parseCreationOptionsFromJSON) {
  button.disabled = false;
} else {
  fail("This browser does not support security keys, or the page was not loaded over HTTPS.");
}

button.addEventListener("click", async () => {
  problem.hidden = true;
  button.disabled = true;
  try {
    const found = await credential(button.dataset.webauthn);
    button.form.elements.credential.value = JSON.stringify(found.toJSON());
    button.form.requestSubmit();
  } catch (error) {
    fail(error.name === "NotAllowedError" ? "The security key was not used. Try again." : "The security key cannot be used here.");
    button.disabled = false;
  }
});
