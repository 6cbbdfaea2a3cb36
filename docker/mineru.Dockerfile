# The MinerU server of compose.yaml's profile `mineru`, in the tested version. See docs/mineru.md.
FROM python:3.11-slim

RUN useradd --uid 10002 --user-group --create-home mineru
WORKDIR /home/mineru
COPY requirements-mineru.txt .
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements-mineru.txt

USER 10002:10002
EXPOSE 8000
# `flash` has no models, and reads text layers only. Other tiers download their models into the home folder.
CMD ["mineru-api", "--tier", "flash", "--host", "0.0.0.0", "--port", "8000", "--upload-dir", "/tmp/uploads"]
