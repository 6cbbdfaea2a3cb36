# Entry point of the proxy's container: write the configuration that depends on settings, and start nginx.
set -eu

mkdir -p /tmp/proxy
cd /tmp/proxy

# A form may have twice the maximum file size, so that the page can report the error: etl/ingest/multipart.py.
# A batch has many files. This is above both limits; the error of web is more specific.
echo "client_max_body_size $((${ETL_MAX_FILE_BYTES:-52428800} * 2 + ${ETL_MAX_BATCH_BYTES:-104857600} + 1048576));" >size.conf

# Networks of other proxies. X-Forwarded-For and -Proto of other clients are ignored.
{
    echo 'geo $realip_remote_addr $from_trusted { default 0;'
    echo "${TRUSTED_PROXY_CIDRS:-}" | tr ', ' '\n\n' | sed -n 's/.\{1,\}/    & 1;/p'
    echo '}'
    echo 'real_ip_header X-Forwarded-For;'
    echo 'real_ip_recursive on;'
    echo "${TRUSTED_PROXY_CIDRS:-}" | tr ', ' '\n\n' | sed -n 's/.\{1,\}/set_real_ip_from &;/p'
} >trusted.conf

if [ -s /run/secrets/tls_certificate ]; then
    cp /etc/proxy/tls.conf servers.conf
else
    cp /etc/proxy/plain.conf servers.conf
fi

exec nginx -c /etc/proxy/nginx.conf -g 'daemon off;'
