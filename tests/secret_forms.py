"""Forms in which secrets occur in texts and URLs; SECRET stands for the part that may not appear anywhere."""

from __future__ import annotations

SECRET = "Zq7Kx9Lw2Vb5Nm8Rt3Yp"

FORMS = (
    f"s3://AKUSER:{SECRET}@bucket/folder",
    f"s3://{SECRET}@bucket/folder",
    f"https://user:{SECRET}@host.example/folder",
    f"simplecache::s3://key:{SECRET}@bucket/folder",
    f"zip://inner.zip::https://user:{SECRET}@host.example/outer",
    f"abfs://container@account/folder?sv=2022&sig={SECRET}&se=2030",
    f"https://bucket.example/x?X-Amz-Signature={SECRET}&X-Amz-Date=20260101",
    f"https://bucket.example/x?X-Amz-Credential={SECRET}/20260101/eu/s3",
    f"https://bucket.example/x?X-Amz-Security-Token={SECRET}",
    f"https://storage.example/x?GoogleAccessId=me&Signature={SECRET}",
    f"https://host.example/x?access_token={SECRET}",
    f"https://host.example/x?api_key={SECRET}#part",
    f"https://host.example/x?token={SECRET}",
    f"hf_{SECRET}",
    f"ghp_{SECRET}",
    f"github_pat_{SECRET}",
    f"glpat-{SECRET}",
    f"xoxb-{SECRET}",
    f"sk-{SECRET}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"authorization: Basic {SECRET}==",
    f"password={SECRET}",
    f"passwd: {SECRET}",
    f"secret='{SECRET}'",
    f'"api_key": "{SECRET}"',
    f"aws_secret_access_key = {SECRET}",
    f"AccountName=name;AccountKey={SECRET};EndpointSuffix=core",
    f"hub_token={SECRET}",
    f"HF_TOKEN={SECRET}",
    f"--token={SECRET}",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
    f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{SECRET}\n-----END RSA PRIVATE KEY-----",
)
